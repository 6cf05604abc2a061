# The tests of Sentinel of Redis or Valkey, while a client writes and reads all the time.
#
# Runs tests/sentinel/run.tcl of the source in the current folder; no file of it is changed. After
# each test, when all running sentinels name one master and it is a master:
#   - what is written through Pointsman arrives at that master;
#   - if a failover was ordered since the initialisation of the unit, and nothing else interfered
#     with Redis, that master has every write that the client has an answer for.
# A test that passes and leaves this otherwise has failed. Without Pointsman the client asks the
# sentinels for the master whenever it connects, and nothing of this is judged, only counted.
#
# Arguments: sentinel_client.tcl, the way, Pointsman's port, and options of run.tcl.

set argv [lassign $argv ::client_program ::way ::proxy_port]
# What a test does to Redis that may lose writes.
set ::harmful {slaveof replicaof flushall debug failover shutdown}
set ::patience_ms 30000
array set ::total {changes 0 slowest_ms 0 kept 0 lost 0 stale 0}
set ::master ""
set ::marker 0

proc run_units {} {
    set ::kind [expr {[info exists ::valkey_instances] ? "valkey" : "redis"}]
    hook S observe_sentinel
    hook R observe_redis
    hook kill_instance observe_kill
    hook pause_process observe_pause
    rename test ""
    rename judged_test test
    set ::log client.log
    file delete $::log
    set sentinels [lmap it $::sentinel_instances {dict get $it port}]
    set support [file normalize ../../support/$::kind.tcl]
    set client [open "|[list [info nameofexecutable] $::client_program $support $::log \
        $::proxy_port [expr {$::way eq "direct" ? $sentinels : ""}]]" w]
    begin_segment
    foreach unit [lsort [glob -types f ../tests/*.tcl]] {
        if {[llength $::run_matching] && ![search_pattern_list $unit $::run_matching true]} continue
        await_loaded
        puts "\[unit\]: [file tail $unit]"
        # A failed test leaves its unit by `continue`.
        if {[catch {uplevel #0 [list source $unit]} error] == 1} {
            puts "\[exception\]: $error\n$::errorInfo"
            incr ::failed
        }
    }
    catch {close $client}
    if {$::total(kept) == 0} {puts {[err]: no planned failover was judged}}
    puts "\[figures\]: [llength [answered [log_lines]]] answered writes;\
        $::total(kept) before the end of a planned failover: $::total(lost) lost,\
        $::total(stale) read otherwise"
    if {$::way ne "direct"} {
        puts "\[figures\]: followed $::total(changes) changes of the master, each within\
            $::total(slowest_ms) ms of the agreement of all sentinels"
    }
    puts {[ended]}
}

# A unit may leave a replica that copies and loads everything, because the client's writes came
# between. The next unit expects none. A replica without a master is not waited for.
proc await_loaded {} {
    set end [expr {[clock seconds] + 60}]
    foreach_${::kind}_id id {
        while {![instance_is_killed $::kind $id] && [clock seconds] < $end} {
            set info ""
            catch {original_R $id info} info
            if {[get_info_field $info loading] eq "0"
                && [get_info_field $info master_link_status] in {"" up}} break
            after 100
        }
    }
}

# Calls `observer` with the arguments of each call of a procedure of the tests that succeeded.
proc hook {name observer} {
    rename $name original_$name
    proc $name args "
        set result \[uplevel 1 \[list original_$name {*}\$args\]\]
        $observer {*}\$args
        return \$result
    "
}

proc observe_sentinel {id args} {
    if {[string match -nocase {sentinel failover *} $args]} {set ::ordered 1}
}

proc observe_redis {id {command ""} args} {
    if {[string tolower $command] in $::harmful} {set ::clean 0}
}

proc observe_kill {type id} {
    if {$type ne "sentinel"} {set ::clean 0}
}

proc observe_pause args {
    set ::clean 0
}

# What the client logged: the number of each answered write, and its other findings.
proc log_lines {} {
    set file [open $::log a+]
    seek $file 0
    set lines [split [string trimright [read $file]] \n]
    close $file
    return $lines
}

proc answered {lines} {
    lsearch -all -inline -regexp $lines {^\d+$}
}

# Only writes after this are judged.
proc begin_segment {} {
    set ::begin [llength [log_lines]]
    set ::clean 1
    set ::ordered 0
}

proc judged_test {name code} {
    # Addresses differ from run to run.
    regsub -all {127\.0\.0\.1:\d+} $name ADDRESS shown
    if {[catch {uplevel 1 $code} error] || [catch judge error]} {
        incr ::failed
        puts "\n\[err\]: $shown\n$error"
        return -code continue
    }
    puts "\n\[ok\]: $shown"
    if {[string match "(*init)*" $name]} begin_segment
}

proc judge {} {
    set id [named_master]
    if {$id eq ""} return
    if {$::way ne "direct"} {await_marker $id}
    if {$::clean && $::ordered} {check_writes $id}
}

# The master that all running sentinels name, if it is one; otherwise nothing.
proc named_master {} {
    set named {}
    foreach sentinel $::sentinel_instances {
        if {[dict get $sentinel pid] == -1} continue
        if {[catch {[dict get $sentinel link] sentinel get-master-addr-by-name mymaster} address]} return
        dict set named [lindex $address 1] 1
    }
    if {[dict size $named] != 1} return
    set id [lsearch -index [expr {1 + [lsearch [lindex [set ::${::kind}_instances] 0] port]}] \
        [set ::${::kind}_instances] [dict keys $named]]
    if {$id == -1 || [instance_is_killed $::kind $id]} return
    set pid [get_instance_attrib $::kind $id pid]
    if {[string match T* [exec ps -o state= -p $pid]]} return
    if {[catch {RI $id role} role] || $role ne "master"} return
    return $id
}

# Waits until a write through Pointsman arrives at this master.
proc await_marker {id} {
    set begin [clock milliseconds]
    set why "it did not arrive"
    incr ::marker
    while {[catch {proxied set marker $::marker} why] || [original_R $id get marker] ne $::marker} {
        if {[clock milliseconds] - $begin > $::patience_ms} {
            error "Pointsman does not lead to $::kind $id, which all sentinels name: $why"
        }
        after 20
    }
    if {$id ne $::master} {
        set ::master $id
        incr ::total(changes)
        set ::total(slowest_ms) [expr {max($::total(slowest_ms), [clock milliseconds] - $begin)}]
    }
}

proc proxied args {
    set link [$::kind 127.0.0.1 $::proxy_port 0 0]
    try {$link {*}$args} finally {catch {$link close}}
}

# Checks that this master has the answered writes, and that no answered write was read otherwise.
proc check_writes {id} {
    set lines [lrange [log_lines] $::begin end]
    set stale [lsearch -all -inline $lines stale*]
    set lost {}
    set written [lmap it [answered $lines] {string cat written: $it}]
    foreach key $written {
        if {![original_R $id exists $key]} {lappend lost $key}
    }
    incr ::total(kept) [llength $written]
    incr ::total(lost) [llength $lost]
    incr ::total(stale) [llength $stale]
    # A later test of this unit counts only what is written from here on.
    set ::begin [expr {$::begin + [llength $lines]}]
    if {$::way ne "direct" && [llength $lost] + [llength $stale]} {
        error "lost of [llength $written] answered writes: $lost; read otherwise: $stale"
    }
}

set file [open tests/sentinel/run.tcl]
set text [read $file]
close $file
if {![regsub {\n +run_tests\n} $text "\n    run_units\n" text]} {error "run.tcl runs no tests"}
eval $text
