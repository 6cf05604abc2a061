"""Holds objects against the schemas of Kubernetes: `schemas.py FOLDER`, where FOLDER/1.30/*.yaml is what is meant for Kubernetes 1.30.

The validator's own command reads all definitions of a version anew for each object, and only warns of an object that it has no schema
for. Here they are read once, and such an object is a fault; unknown fields are faults, too. Objects of the Prometheus operator have no
schema here and are left out. Prints how many objects there were, or the faults.
"""

import concurrent.futures
import functools
import pathlib
import sys

import yaml
from kubernetes_validate import utils

OPERATOR = "monitoring.coreos.com/v1"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
utils.schema_contents = functools.cache(utils.schema_contents)


def fault(item, version):
    """What is wrong with an object, or nothing."""
    try:
        held = utils.validate(item, version, strict=True)
        return None if held == version else f"there are only schemas of {held}"
    except utils.ValidationError as error:
        return f"{'.'.join(str(part) for part in error.path)}: {error.message}"
    except utils.SchemaNotFoundError as error:
        return error.message


def version(folder):
    """How many objects are meant for one version, and what is wrong with them."""
    count, faults = 0, []
    for path in sorted(folder.glob("*.yaml")):
        for item in yaml.load_all(path.read_text(), Loader=LOADER):
            if item and item["apiVersion"] != OPERATOR:
                count += 1
                if why := fault(item, folder.name):
                    faults.append(f"Kubernetes {folder.name}, {path.stem}, {item['kind']}: {why}")
    return count, faults


def main():
    folders = sorted(pathlib.Path(sys.argv[1]).iterdir())
    with concurrent.futures.ProcessPoolExecutor() as pool:
        done = list(pool.map(version, folders))
    faults = [why for _, of_one in done for why in of_one]
    print("\n".join(faults) if faults else sum(count for count, _ in done))
    return 1 if faults or not all(count for count, _ in done) else 0


if __name__ == "__main__":
    sys.exit(main())
