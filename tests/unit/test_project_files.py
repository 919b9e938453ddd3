"""What the project keeps for GitHub, Read the Docs and pre-commit, which nothing here runs: each fits its schema, and
says what the rest of the project says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from pre_commit.clientlib import load_config

from monarch_nb.config import VERSION

ROOT = Path(__file__).parents[2]
FORMS = sorted(set((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
FILES_BY_SCHEMA = {
    "github-workflows": sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    "github-issue-forms": FORMS,
    "github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
    "readthedocs": [ROOT / ".readthedocs.yaml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


@pytest.mark.parametrize("schema", FILES_BY_SCHEMA)
def test_files_fit_their_schema(schema: str) -> None:
    files = FILES_BY_SCHEMA[schema]
    assert files
    done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", f"vendor.{schema}", *map(str, files)])
    assert done.exit_code == 0, done.output


def test_pre_commit_runs_what_make_check_runs() -> None:
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    commands = [line.strip("\t@") for line in recipe[1].splitlines() if "$(say)" not in line]
    hooks = [hook["entry"] for repo in load_config(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    panel = """bash -c 'cd labextension && PATH="$PWD/../.venv/bin:$PATH" jlpm check'"""
    assert hooks == [command.replace("$(BIN)", ".venv/bin").replace("$(JLPM) check", panel) for command in commands]


def test_the_night_tests_every_python_that_the_package_names() -> None:
    classifiers = re.findall(r"Programming Language :: Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    tested = yaml.safe_load((ROOT / ".github" / "workflows" / "night.yml").read_text())["jobs"]["test-all"]
    assert sorted({row["python"] for row in tested["strategy"]["matrix"]["include"]}) == classifiers


def test_the_citation_is_of_this_version() -> None:
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == VERSION


def test_whoever_reports_a_bug_is_asked_what_the_doctor_says() -> None:
    fields = {field.get("id"): field for field in yaml.safe_load(FORMS[0].read_text())["body"]}
    assert "monarch-nb doctor --json" in fields["doctor"]["attributes"]["label"]
    assert fields["doctor"]["validations"]["required"]
