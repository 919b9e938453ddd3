"""What the panel and the widget show and do, as plain JSON values: no Jupyter, no HTTP."""
