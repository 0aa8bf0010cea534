def __getattr__(name):  # `from h3core.studio import Studio`, loaded when asked for
    if name == "Studio":
        from h3core.studio.studio import Studio

        return Studio
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
