"""Pages in two steps: sections of finished text, then printed. Data for programs: `export`."""
