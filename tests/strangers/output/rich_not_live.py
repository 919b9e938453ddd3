# A bar of rich where the user says that nothing can be redrawn.
# env: TTY_COMPATIBLE=0
# env: COLUMNS=80
# ways: script
from rich.console import Console
from rich.progress import BarColumn, Progress

console = Console()
with Progress("[bold]{task.description}", BarColumn(), console=console, auto_refresh=False) as progress:
    task = progress.add_task("training", total=3)
    for _ in range(3):
        progress.update(task, advance=1, refresh=True)
console.print("[red]done[/red]")
