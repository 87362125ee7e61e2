"""What users import. Importing this package is cheap: names are loaded when they are first used."""
