"""Reports: `text`, `json`, `junit` and `html` each turn outcomes into text.

Rules of this package: a report shows what an outcome says and judges nothing. `directory` puts the reports of a run
where `--report` wants them.
"""
