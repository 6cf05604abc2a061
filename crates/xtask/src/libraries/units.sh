# Runs every unit of Redis's own tests by itself, so that an exception ends a unit and not the run.
# Arguments: the port, the file for the output, further options.
port=$1
output=$2
shift 2
units=$(sed -n '/^set ::all_tests {/,/^}/s/^ *\(unit\/[^ ]*\).*/\1/p' tests/test_helper.tcl)
for unit in $units; do
    echo "[unit]: $unit"
    tclsh tests/test_helper.tcl --host 127.0.0.1 --port "$port" --single "$unit" "$@"
done > "$output" 2>&1
echo '[ended]' >> "$output"
