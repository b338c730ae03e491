c = get_config()  # noqa: F821

# What the SDKs show is no terminal.
c.InteractiveShell.colors = "nocolor"
# No database of what was typed, no thread that writes it.
c.HistoryManager.enabled = False
# A long list is shown whole.
c.PlainTextFormatter.max_seq_length = 0
c.InteractiveShellApp.extensions = ["aenv_display"]
