"""IPython extension: the forms of results that E2B's SDKs read beside Jupyter's own."""

import sys
from typing import Any

import orjson
from IPython.core.formatters import BaseFormatter, JSONFormatter
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from PIL import Image, ImageShow
from traitlets import ObjectName, Unicode

_AS_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def _imported(module: str, name: str) -> tuple[type, ...]:
    """A class of a module, if somebody has imported it: else nothing can be an instance of it."""
    kind = getattr(sys.modules.get(module), name, None)
    return () if kind is None else (kind,)


def _cell(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


class DataFormatter(BaseFormatter):
    """A DataFrame as lists of values by column."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        if not isinstance(obj, _imported("pandas", "DataFrame")):
            return super().__call__(obj)
        return {str(name): [_cell(value) for value in column] for name, column in obj.to_dict(orient="list").items()}


class ChartFormatter(BaseFormatter):
    """What a figure of matplotlib's shows, as numbers."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        if not isinstance(obj, _imported("matplotlib.figure", "Figure")):
            return super().__call__(obj)
        from e2b_charts import chart_figure_to_dict

        try:
            return chart_figure_to_dict(obj)
        except Exception:
            # A figure that cannot be read so still has its picture.
            return None


class ValueFormatter(JSONFormatter):
    """Lists and dictionaries as JSON, where they can be."""

    def __call__(self, obj: Any) -> Any:
        if isinstance(obj, (list, dict)):
            try:
                return orjson.loads(orjson.dumps(obj, option=_AS_JSON)), {"expanded": True}
            except TypeError:
                pass
        return super().__call__(obj)


class DisplayViewer(ImageShow.Viewer):
    """There is no screen: `image.show()` is a result."""

    def show(self, image: Image.Image, **options: Any) -> int:
        display(image)
        return 1


def _show_saved(save: Any) -> Any:
    """As with E2B, an image saved under a name is a result too."""

    def save_and_show(self: Image.Image, fp: Any, *args: Any, **options: Any) -> None:
        save(self, fp, *args, **options)
        if isinstance(fp, str):
            display(self)

    return save_and_show


def load_ipython_extension(shell: InteractiveShell) -> None:
    formatters = shell.display_formatter.formatters
    for kind in (DataFormatter, ChartFormatter, ValueFormatter):
        formatter = kind(parent=shell.display_formatter)
        formatters[formatter.format_type] = formatter
    ImageShow.register(DisplayViewer(), order=0)
    Image.Image.save = _show_saved(Image.Image.save)
