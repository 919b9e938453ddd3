"""Running a body (a cell, a push, a pull) in the shell, and what comes of it."""

import ast
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.proto.run_pb2 import Cell, RankResult, RunSpec
from monarch_nb.worker import live_update, values
from monarch_nb.worker.after_fork import device_name
from monarch_nb.worker.compiler import BoundedCompiler
from monarch_nb.worker.reloading import Reloader
from monarch_nb.worker.shell import INTERACTIVESHELL_FILE, LastValue, RankShell, to_json

_ExceptionTuple = tuple[type[BaseException], BaseException, TracebackType | None]


@dataclass(frozen=True)
class Transformed:
    """A cell as plain Python.

    Attributes:
        code: the Python code; the cell itself when it can not be transformed.
        problem: why it can not.
    """

    code: str
    problem: _ExceptionTuple | None = None

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
    """

    def __init__(self, shell: RankShell, blob_directory: str, reloader: Reloader) -> None:
        self._shell = shell
        assert isinstance(shell.compile, BoundedCompiler)
        self._compiler = shell.compile
        self._reloader = reloader
        self._blob_directory = blob_directory
        self._has_presets = False

    async def run(self, spec: RunSpec, transformed: Transformed | None, result: RankResult) -> BaseException | None:
        """Run a body; fill `result` with its value. Waits only in a cell that awaits.

        Returns:
            What user code raised, or None.
        """
        try:
            if spec.HasField("tree"):
                self._reloader.follow(spec.tree)
            match spec.WhichOneof("body"):
                case "cell":
                    assert transformed is not None
                    return await self._run_cell(spec.cell, spec.number, transformed, result)
                case "push":
                    self._shell.user_ns.update(_call(self._load, spec.push.blob))
                case "pull":
                    value = self._evaluate(spec.pull.expression, spec.number)
                    _call(values.store_value, result, value, self._blob_directory)
        except BaseException as error:  # noqa: BLE001 -- KeyboardInterrupt and SystemExit of user code too
            return error
        return None

    def transform(self, cell: Cell) -> Transformed:
        """Turn magics, `!` and `?` into Python."""
        self._define_presets(cell.code)
        if self._is_plain_python(cell.code):
            return Transformed(cell.code)  # IPython's transformers need a second for a megabyte
        try:
            return Transformed(self._shell.transform_cell(cell.code))  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 -- transformers may raise anything, a SyntaxError above all
            kind, error, trace = sys.exc_info()
            assert kind is not None
            assert error is not None
            return Transformed(cell.code, (kind, error, trace))

    async def _run_cell(
        self, cell: Cell, number: int, transformed: Transformed, result: RankResult
    ) -> BaseException | None:
        shell = self._shell
        shell.execution_count = cell.cell_number or number
        self._compiler.kind = "cell" if cell.cell_number else "run"
        shell.running_code = cell.code
        last: LastValue = shell.displayhook  # type: ignore[assignment]
        executed = await shell.run_cell_async(
            cell.code, transformed_cell=transformed.code, preprocessing_exc_tuple=transformed.problem
        )
        _call(shell.events.trigger, "post_execute")  # matplotlib's figures are flushed here
        _call(shell.events.trigger, "post_run_cell", executed)
        value, bundle = last.value, last.bundle
        last.clear()
        error: BaseException | None = executed.error_before_exec or executed.error_in_exec or shell.take_script_error()
        if error is None:
            result.bundle_json = to_json(bundle) if bundle else ""
            if cell.want_value and value is not None:
                _call(values.store_value, result, value, self._blob_directory)
        return error

    def _evaluate(self, expression: str, number: int) -> Any:
        self._compiler.kind = "pull"
        name = self._compiler.cache(expression, number)
        code = compile(expression.strip(), name, "eval")
        return _call(eval, code, self._shell.user_global_ns, self._shell.user_ns)

    def _load(self, blob: str) -> dict[str, Any]:
        if os.path.basename(blob) != blob:
            raise ValueError(f"not the name of a blob: {blob!r}")
        return values.load_variables(Path(self._blob_directory, blob))

    def _is_plain_python(self, code: str) -> bool:
        """Return whether IPython's transformers would leave `code` as it is."""
        if self._shell.input_transformers_post:
            return False
        try:
            tree = self._shell.compile.ast_parse(code)
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return False
        # A single line may be a magic without its %: `ls -l` is valid Python.
        return "\n" in code.strip() or not any(isinstance(node, ast.Expr) for node in ast.iter_child_nodes(tree))

    def _define_presets(self, code: str) -> None:
        """Define `dist` and `device`, importing torch for them, once a cell mentions them."""
        if not self._has_presets and ("torch" in sys.modules or "dist" in code or "device" in code):
            self._has_presets = True
            define_torch_presets(self._shell.user_ns)


def define_torch_presets(namespace: dict[str, Any]) -> None:
    """Define `dist` and `device` where they are not defined and torch can be imported."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return
    namespace.setdefault("dist", dist)
    namespace.setdefault("device", torch.device(device_name(os.environ)))


def user_code_entries() -> set[CodeType]:
    """Return the code of the functions that call user code."""
    return {InteractiveShell.run_code.__code__, _call.__code__, live_update.execute.__code__}


def not_user_files() -> set[str]:
    """Return the files of what `user_code_entries` call besides user code."""
    return {INTERACTIVESHELL_FILE, __file__}


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call something that runs user code: an interrupt may raise in there."""
    return function(*arguments)
