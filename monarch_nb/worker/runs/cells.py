"""Running a body (a cell, a push, a pull) in the shell, and what comes of it."""

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from IPython.core.autocall import IPyAutocall
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.macro import Macro

from monarch_nb.config import TORCH_PRESETS
from monarch_nb.ground.places import Place
from monarch_nb.integrations import lightning
from monarch_nb.proto.run_pb2 import Cell, RankResult, RunSpec
from monarch_nb.worker.become_rank import device_name, presets
from monarch_nb.worker.groups import forming
from monarch_nb.worker.reload import Reloader, execute
from monarch_nb.worker.runs import instruments, values
from monarch_nb.worker.runs.script import arguments_of, exit_status
from monarch_nb.worker.shell import streams
from monarch_nb.worker.shell.shell import INTERACTIVESHELL_FILE, BoundedCompiler, LastValue, RankShell, to_json


class Worlds:
    """Tells user code which world it is in: by torchrun's variables and by the numbers that a namespace starts with.

    Args:
        rank: the rank's number in the mesh.
        namespace: of the cells.
    """

    def __init__(self, rank: int, namespace: dict[str, Any]) -> None:
        self.rank, self._namespace = rank, namespace
        self._left_own = False

    @contextmanager
    def of(self, spec: RunSpec) -> Iterator[None]:
        """Be in a run's world while the block is executed.

        A world of a run's own begins without process groups. Those that it leaves end when the next run begins: other
        ranks may still need them when this one is done.
        """
        if spec.own_world or self._left_own:
            forming.end_groups()
            self._left_own = False
        if not spec.own_world:
            yield
            return
        self._left_own = True
        forming.begin_world(spec.ranks)
        before = self._enter(self._place_in(spec))
        try:
            yield
        finally:
            self._leave(*before)
            forming.begin_world(())

    def _place_in(self, spec: RunSpec) -> Place:
        """Return the rank's place in the run's world. Its local rank stays: by it the rank finds its GPU."""
        per_node, size = (int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
        place = Place.among(self.rank, spec.ranks or range(size), per_node)
        return replace(place, local_rank=int(os.environ["LOCAL_RANK"]))

    def _enter(self, place: Place) -> tuple[dict[str, str], dict[str, int]]:
        """Say that this rank has another place; return what was said before. What users have given a meaning of their
        own is left alone: a variable `rank` of a cell, and what they want of Lightning."""
        of_mesh = Place.among(self.rank, range(int(os.environ["WORLD_SIZE"])), int(os.environ["LOCAL_WORLD_SIZE"]))
        defaults = of_mesh.trainer_defaults
        new = {**place.variables, **place.trainer_defaults}
        variables = {
            name: value
            for name in new
            if (value := os.environ.get(name)) is not None and defaults.get(name, value) == value
        }
        numbers = {name: value for name, value in presets(os.environ).items() if self._namespace.get(name) == value}
        os.environ.update({name: new[name] for name in variables})
        self._namespace.update({name: value for name, value in presets(os.environ).items() if name in numbers})
        lightning.become_rank()
        return variables, numbers

    def _leave(self, variables: dict[str, str], numbers: dict[str, int]) -> None:
        own = presets(os.environ)
        os.environ.update(variables)
        self._namespace.update(
            {name: value for name, value in numbers.items() if self._namespace.get(name) == own[name]}
        )
        lightning.become_rank()


_FIRST_NAME = re.compile(r"\s*(\w+)")
_PRESET = re.compile(rf"\b({'|'.join(TORCH_PRESETS)})\b")
_ExceptionTuple = tuple[type[BaseException], BaseException, TracebackType | None]


@dataclass(frozen=True)
class Transformed:
    """A cell as plain Python.

    Attributes:
        code: the Python code; the cell itself when it can not be transformed.
        problem: why it can not.
        statements: the parsed code of a cell that was Python from the start.
        filename: what they were parsed as.
    """

    code: str
    problem: _ExceptionTuple | None = None
    statements: list[ast.stmt] | None = None
    filename: str = ""

    @property
    def may_await(self) -> bool:
        """False when the code can certainly run without the event loop."""
        return "await" in self.code or "async" in self.code


class CellRunner:
    """Runs bodies in the one shell of this rank.

    Args:
        shell: the shell.
        blob_directory: where pushed and large returned values lie.
        reloader: brings modules up to date before a body.
        worlds: says which ranks a body is to work with.
    """

    def __init__(self, shell: RankShell, blob_directory: str, reloader: Reloader, worlds: Worlds) -> None:
        self._shell = shell
        assert isinstance(shell.compile, BoundedCompiler)
        self._compiler = shell.compile
        self._reloader, self._worlds = reloader, worlds
        self._blob_directory = blob_directory
        self._has_presets = False

    async def run(self, spec: RunSpec, transformed: Transformed | None, result: RankResult) -> BaseException | None:
        """Run a body; fill `result` with its value. Waits only in a cell that awaits.

        Returns:
            What user code raised, or None.
        """
        try:
            with self._worlds.of(spec), instruments.of_run(spec, self._worlds.rank, self._shell.user_code):
                error = await self._run_body(spec, transformed, result)
            _call(streams.flush_standard)
            return error
        except BaseException as error:  # noqa: BLE001 -- KeyboardInterrupt and SystemExit of user code too
            return error

    async def _run_body(
        self, spec: RunSpec, transformed: Transformed | None, result: RankResult
    ) -> BaseException | None:
        if spec.HasField("tree"):
            self._reloader.follow(spec.tree)
        match spec.WhichOneof("body"):
            case "cell":
                assert transformed is not None
                self._reloader.note_stars(spec.cell.code)
                return await self._run_cell(spec.cell, transformed, result)
            case "push":
                self._shell.user_ns.update(_call(self._load, spec.push.blob))
            case "pull":
                value = self._evaluate(spec.pull.expression, spec.number)
                _call(values.store_value, result, value, self._blob_directory)
            case "end_groups":
                values.store_value(result, forming.end_groups(), self._blob_directory)
        return None

    def transform(self, cell: Cell, number: int) -> Transformed:
        """Turn magics, `!` and `?` into Python, under the name of that cell, or run."""
        shell = self._shell
        shell.execution_count = cell.cell_number or number
        shell.running_code = cell.code
        shell.user_ns.setdefault("get_ipython", shell.get_ipython)  # magics need it, and people delete all names
        self._compiler.kind = "cell" if cell.cell_number else "run"
        is_script = cell.HasField("script")
        plain = None if is_script else self._parse_plain(cell.code)
        self._define_presets(cell.code, plain.statements if plain else None)
        if is_script:
            return Transformed("", statements=[])
        if plain is not None:
            return plain  # IPython's transformers need a second for a megabyte
        try:
            return Transformed(shell.transform_cell(cell.code))  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 -- transformers may raise anything, a SyntaxError above all
            kind, error, trace = sys.exc_info()
            assert kind is not None
            assert error is not None
            return Transformed(cell.code, (kind, error, trace))

    async def _run_cell(self, cell: Cell, transformed: Transformed, result: RankResult) -> BaseException | None:
        shell = self._shell
        last: LastValue = shell.displayhook  # type: ignore[assignment]
        sys.displayhook = last  # whatever an earlier cell did to it
        shell.user_ns.pop("__warningregistry__", None)  # each cell warns again
        executed = None
        is_plain = transformed.statements is not None and not transformed.may_await and not self._is_extended()
        if is_plain or cell.HasField("script"):
            error = self._execute(cell, transformed)
        else:
            executed = await shell.run_cell_async(
                cell.code, transformed_cell=transformed.code, preprocessing_exc_tuple=transformed.problem
            )
            error = executed.error_before_exec or executed.error_in_exec or shell.take_script_error()
        _call(shell.events.trigger, "post_execute")  # matplotlib's figures are flushed here
        if executed is not None:
            _call(shell.events.trigger, "post_run_cell", executed)
        value, bundle = last.value, last.bundle
        last.clear()
        if cell.HasField("script"):
            values.store_value(result, exit_status(error), self._blob_directory)
            return error
        if error is None:
            result.bundle_json = to_json(bundle) if bundle else ""
            if cell.want_value and value is not None:
                _call(values.store_value, result, value, self._blob_directory)
        return error

    def _is_extended(self) -> bool:
        """Return whether something of the user's takes part in how IPython runs a cell."""
        shell = self._shell
        callbacks = shell.events.callbacks
        return bool(
            callbacks["pre_run_cell"]
            or callbacks["post_run_cell"]
            or shell.ast_transformers
            or shell.custom_exceptions
            or shell.logger.log_active
            or shell.ast_node_interactivity != "last_expr"
        )

    def _execute(self, cell: Cell, transformed: Transformed) -> BaseException | None:
        """Do what IPython's `run_cell_async` does, where nobody else takes part and nothing awaits: its generality
        was a fifth of what an empty cell costs a rank."""
        shell = self._shell
        statements = transformed.statements or []
        try:
            _call(shell.events.trigger, "pre_execute")
            if cell.HasField("script"):
                _call(shell.run_program, cell.script.path, arguments_of(cell.script), cell.script.module)
            for number, statement in enumerate(statements, 1):
                tree: Any = ast.Module([statement], [])
                mode = "exec"
                if number == len(statements) and isinstance(statement, ast.Expr):
                    tree, mode = ast.Interactive([statement]), "single"
                code = self._compiler(tree, transformed.filename, mode)
                _call(exec, code, shell.user_global_ns, shell.user_ns)
        except BaseException as error:  # noqa: BLE001 -- as in `run`
            return error
        return shell.take_script_error()

    def _evaluate(self, expression: str, number: int) -> Any:
        self._compiler.kind = "pull"
        name = self._compiler.cache(expression, number)
        code = compile(expression.strip(), name, "eval")
        return _call(eval, code, self._shell.user_global_ns, self._shell.user_ns)

    def _load(self, blob: str) -> dict[str, Any]:
        if os.path.basename(blob) != blob:
            raise ValueError(f"not the name of a blob: {blob!r}")
        return values.load_variables(Path(self._blob_directory, blob))

    def _parse_plain(self, code: str) -> Transformed | None:
        """Return code parsed, if IPython's transformers would leave it as it is."""
        if self._shell.input_transformers_post or not code.strip():
            return None
        filename = self._compiler.cache(code, self._shell.execution_count)
        try:
            tree = self._compiler.ast_parse(code, filename)
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return None
        assert isinstance(tree, ast.Module)
        is_line = "\n" not in code.strip() and any(isinstance(node, ast.Expr) for node in tree.body)
        if is_line and self._may_be_command(code):
            return None
        return Transformed(code, statements=tree.body, filename=filename)

    def _may_be_command(self, line: str) -> bool:
        """Return whether a line may be a magic without its %, as `ls -l` is, which is valid Python."""
        first = _FIRST_NAME.match(line)
        if "#" in line or self._shell.autocall:
            return True
        return first is not None and (
            self._shell.find_magic(first[1]) is not None  # type: ignore[no-untyped-call]
            or isinstance(self._shell.user_ns.get(first[1]), (IPyAutocall, Macro))
        )

    def _define_presets(self, code: str, statements: list[ast.stmt] | None) -> None:
        """Define `torch`, `dist` and `device`, importing torch for them, once a cell uses them."""
        if not self._has_presets and ("torch" in sys.modules or _uses_presets(code, statements)):
            self._has_presets = True
            define_torch_presets(self._shell.user_ns)


def _uses_presets(code: str, statements: list[ast.stmt] | None) -> bool:
    """Return whether a cell uses what it does not import itself: before it does, it may set variables. The code below a
    magic is text."""
    if statements is None:
        return _PRESET.search(code) is not None
    nodes = [node for statement in statements for node in ast.walk(statement)]
    imports = (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
    imported = {alias.asname or alias.name.partition(".")[0] for each in imports for alias in each.names}
    return any(isinstance(node, ast.Name) and node.id in set(TORCH_PRESETS) - imported for node in nodes)


def define_torch_presets(namespace: dict[str, Any]) -> None:
    """Define `torch`, `dist` and `device` where they are not defined and torch can be imported."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return
    namespace.setdefault("torch", torch)
    namespace.setdefault("dist", dist)
    namespace.setdefault("device", torch.device(device_name(os.environ)))


def user_code_entries() -> set[CodeType]:
    """Return the code of the functions that call user code."""
    return {InteractiveShell.run_code.__code__, _call.__code__, execute.__code__}


def not_user_files() -> set[str]:
    """Return the files of what `user_code_entries` call besides user code."""
    return {INTERACTIVESHELL_FILE, __file__}


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call something that runs user code: an interrupt may raise in there."""
    return function(*arguments)
