# A client that writes and reads all the time, each on a connection of its own, and connects again
# after an error. It logs the number of each answered write, each value that was read otherwise than
# it was written just before, and each error.
#
# It ends with its standard input.
#
# Arguments: the client library of the tests, the log, Pointsman's port, and the ports of sentinels.
# If there are any, it asks them for the master instead of going through Pointsman.

lassign $argv library ::log ::proxy_port ::sentinels
set ::force_resp3 0
source $library
set ::connect [file rootname [file tail $library]]

proc address {} {
    if {![llength $::sentinels]} {return [list 127.0.0.1 $::proxy_port]}
    foreach port $::sentinels {
        if {[catch {
            set sentinel [$::connect 127.0.0.1 $port 0 0]
            set address [$sentinel sentinel get-master-addr-by-name mymaster]
        }]} {set address {}}
        catch {$sentinel close}
        if {[llength $address]} {return $address}
    }
    error "no sentinel names a master"
}

proc connected {name} {
    upvar #0 $name link
    if {$link eq ""} {set link [$::connect {*}[address] 0 0]}
    return $link
}

proc try_with {name code} {
    upvar #0 $name link
    if {![catch {uplevel 1 $code} why]} {return 1}
    catch {$link close}
    set link ""
    note "error $name $why"
    after 50
    return 0
}

proc note {line} {
    puts $::file $line
    flush $::file
}

set ::file [open $::log a]
fconfigure stdin -blocking 0
set writer ""
set reader ""
for {set n 1} {[gets stdin] eq "" && ![eof stdin]} {incr n} {
    if {[try_with writer {[connected writer] set written:$n $n}]} {
        note $n
        try_with reader {
            set got [[connected reader] get written:$n]
            if {$got ne $n} {note "stale $n $got"}
        }
    }
    after 5
}
