"""Sphinx's settings for the site. No page asks the network for anything: no fonts, scripts or pictures from elsewhere."""

import dovetail

project = "Dovetail"
author = copyright = "The Dovetail developers"
version = release = dovetail.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = []
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

html_theme = "furo"
html_title = f"Dovetail {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f8b", "color-brand-content": "#1f5f8b"},
    "dark_css_variables": {"color-brand-primary": "#7fb8e0", "color-brand-content": "#7fb8e0"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

myst_heading_anchors = 4
highlight_language = "none"  # of indented blocks: commands, output, fragments

default_role = "literal"  # `name` in a docstring, as everywhere in this project
napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the NumPy sections name the types in words
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
nitpicky = False
