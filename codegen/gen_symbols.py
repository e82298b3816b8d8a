"""generated/*_symbols.inc, driver_versions.inc, client_overrides.inc: X-macro tables."""


def driver_symbols(library):
    return [f"PRORATA_DRIVER_SYMBOL({f.symbol}, {f.index}, {f.role_constant})"
            for f in library.functions]


def nvml_symbols(library):
    return [f"PRORATA_NVML_SYMBOL({f.symbol}, {f.index})" for f in library.functions]


def driver_versions(library):
    return [f'PRORATA_DRIVER_VERSION("{v.name}", {v.version}, {v.flag}, {v.symbol})'
            for v in library.versions]


def client_overrides(cuda, nvml):
    lines = [f"PRORATA_DRIVER_OVERRIDE({f.symbol}, {f.index})"
             for f in cuda.functions if f.overridden]
    return lines + [f"PRORATA_NVML_OVERRIDE({f.symbol}, {f.index})"
                    for f in nvml.functions if f.overridden]
