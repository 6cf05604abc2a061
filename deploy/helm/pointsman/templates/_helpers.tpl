{{/*
Shared definitions. `pointsman.values` returns the effective values, after those of the redis-ha chart were translated (_compat.tpl).
Every template reads it once, so none of them knows about compatibility.
*/}}

{{- define "pointsman.values" -}}
{{- if not .Values.enabled -}}
{{- fail "enabled: false has an effect only as a condition of a dependency: add `condition: pointsman.enabled` to this chart's entry in Chart.yaml of the parent" -}}
{{- end -}}
{{- $own := deepCopy .Values -}}
{{- $full := include "pointsman.fullname" . -}}
{{- $selector := dict "app.kubernetes.io/name" (include "pointsman.name" .) "app.kubernetes.io/instance" .Release.Name "app.kubernetes.io/component" "proxy" -}}
{{- $version := .Chart.AppVersion | toString -}}
{{- $standard := dict "app.kubernetes.io/version" $version "app.kubernetes.io/managed-by" .Release.Service "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- $_ := mergeOverwrite $own (dict
      "fullname" $full
      "namespace" .Release.Namespace
      "serviceName" $full
      "createService" true
      "serviceLabels" dict
      "serviceSelector" $selector
      "selector" $selector
      "standardLabels" (merge (dict) $selector $standard)
      "serviceAccountName" (.Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary $full "default"))
      "adminPorts" (list (dict "name" "admin" "port" (int .Values.admin.port)))
      "portNames" (dict "client" "redis" "replica" "readers")
      "families" (include "pointsman.families" .Values | fromJsonArray)) -}}
{{- $_ := set $own "replicas" (ternary 3 .Values.replicas (kindIs "invalid" .Values.replicas)) -}}
{{- if .Values.compat.redisHa.enabled -}}
{{- $_ := include "pointsman.redisHa" (dict "own" $own "root" .) -}}
{{- end -}}
{{- $_ := include "pointsman.checkMasters" $own -}}
{{- $_ := include "pointsman.checkKind" $own -}}
{{- if not $own.servicePorts -}}{{- $_ := include "pointsman.servicePorts" $own -}}{{- end -}}
{{- $own | toYaml -}}
{{- end -}}

{{/*
Refuses what `pointsman check` refuses and no schema can: two masters of one name, and two listeners on one port. Helm would report success, and
every new pod would end at once.
*/}}
{{- define "pointsman.checkMasters" -}}
{{- $own := . -}}
{{- $names := dict -}}
{{- $taken := dict -}}
{{- range .adminPorts -}}
{{- $_ := set $taken (int .port | toString) (printf "the port %s, of the admin server" .name) -}}
{{- end -}}
{{- range $at, $master := .masters -}}
{{- with get $names $master.name -}}
{{- fail (printf "masters[%d].name: %s has the name %q as well. Give each a name of its own; masters[%d].master is the name in Sentinel" $at . $master.name $at) -}}
{{- end -}}
{{- $_ := set $names $master.name (printf "masters[%d]" $at) -}}
{{- range include "pointsman.masterPorts" (dict "at" $at "master" $master "v" $own) | fromJsonArray -}}
{{- $place := printf "masters[%d].%s" $at (get (include "pointsman.portValues" . | fromJson) .key) -}}
{{- $port := int .port | toString -}}
{{- with get $taken $port -}}
{{- fail (printf "%s: port %s is taken by %s. Give each a port of its own" $place $port .) -}}
{{- end -}}
{{- $_ := set $taken $port $place -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses values that a DaemonSet has no place for, which Kubernetes would refuse or ignore. */}}
{{- define "pointsman.checkKind" -}}
{{- if eq .kind "DaemonSet" -}}
{{- if .autoscaling.enabled -}}{{- fail "autoscaling.enabled: a DaemonSet has one pod per node. Set kind to Deployment" -}}{{- end -}}
{{- if .compat.redisHa.enabled -}}{{- fail "compat.redisHa.enabled: the number of pods is haproxy's. Set kind to Deployment" -}}{{- end -}}
{{- if .topologySpreadConstraints -}}{{- fail "topologySpreadConstraints: a DaemonSet has one pod per node. Set kind to Deployment" -}}{{- end -}}
{{- if eq (.deploymentStrategy.type | default "RollingUpdate") "Recreate" -}}{{- fail "deploymentStrategy.type: a DaemonSet knows RollingUpdate only" -}}{{- end -}}
{{- if and .hostNetwork (ne (((.deploymentStrategy.rollingUpdate) | default dict).maxSurge | default 0 | toString) "0") -}}{{- fail "hostNetwork: two pods cannot have one port of a node. Set deploymentStrategy.rollingUpdate to {maxSurge: 0, maxUnavailable: 1}" -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The value in masters[] that a listen key of [[service]] is written from. */}}
{{- define "pointsman.portValues" -}}
{{- dict "listen" "port" "replica_listen" "replicaPort" "sentinel_listen" "sentinelPort" "tls_listen" "tls.port" "replica_tls_listen" "tls.replicaPort" "sentinel_tls_listen" "tls.sentinelPort" | toJson -}}
{{- end -}}

{{/* Ports of the Services. Readers have a Service of their own if replicaService is enabled. */}}
{{- define "pointsman.servicePorts" -}}
{{- $own := . -}}
{{- $ports := list -}}
{{- $others := list -}}
{{- $replicaPorts := list -}}
{{- range $at, $master := .masters -}}
{{- range $index, $port := include "pointsman.masterPorts" (dict "at" $at "master" $master "v" $own) | fromJsonArray -}}
{{- $one := dict "name" $port.name "port" $port.port "target" (int $port.port) -}}
{{- if $port.readers -}}{{- $replicaPorts = append $replicaPorts $one -}}
{{- else if $index -}}{{- $others = append $others $one -}}
{{- else -}}{{- $ports = append $ports $one -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $ports = concat $ports $others -}}
{{- if not .replicaService.enabled -}}{{- $ports = concat $ports $replicaPorts -}}{{- end -}}
{{- $mode := toString .service.adminPort -}}
{{- if or (eq $mode "true") (and (eq $mode "auto") (eq .service.type "ClusterIP")) -}}
{{- $admin := first .adminPorts -}}
{{- $ports = append $ports (dict "name" $admin.name "port" $admin.port "target" (int $admin.port)) -}}
{{- end -}}
{{- $_ := set . "servicePorts" $ports -}}
{{- $_ := set . "replicaServicePorts" $replicaPorts -}}
{{- end -}}

{{/*
The ports of one master: the key in [[service]], the name of the port, and whether it is for readers. The first is that of its clients.
Without a plain port, the port with TLS has its name, so that a Service that selects ports by name finds it.
*/}}
{{- define "pointsman.masterPorts" -}}
{{- $at := .at -}}
{{- $tls := .master.tls | default dict -}}
{{- if not (or .master.port $tls.port) -}}
{{- fail (printf "masters[%d]: set port, tls.port, or both" (int $at)) -}}
{{- end -}}
{{- if and (or $tls.port $tls.replicaPort $tls.sentinelPort) (not $tls.existingSecret) -}}
{{- fail (printf "masters[%d].tls: a port with TLS needs existingSecret, a Secret with a certificate and its key" (int $at)) -}}
{{- end -}}
{{- $ports := list -}}
{{- range $one := list
      (list "listen" .v.portNames.client .master.port "redis-tls" $tls.port)
      (list "sentinel_listen" "sentinels" .master.sentinelPort "sentinel-tls" $tls.sentinelPort)
      (list "replica_listen" .v.portNames.replica .master.replicaPort "readers-tls" $tls.replicaPort) -}}
{{- $key := index $one 0 -}}
{{- $readers := eq $key "replica_listen" -}}
{{- $name := index $one 1 -}}
{{- with index $one 2 -}}
{{- $ports = append $ports (dict "key" $key "name" (include "pointsman.portName" (dict "at" $at "name" $name)) "port" . "readers" $readers) -}}
{{- $name = index $one 3 -}}
{{- end -}}
{{- with index $one 4 -}}
{{- $ports = append $ports (dict "key" (trimSuffix "listen" $key | printf "%stls_listen") "name" (include "pointsman.portName" (dict "at" $at "name" $name)) "port" . "readers" $readers) -}}
{{- end -}}
{{- end -}}
{{- $ports | toJson -}}
{{- end -}}

{{- define "pointsman.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "pointsman.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "pointsman.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "pointsman.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of a port: that of the first master as it is, the others with their number. Port names have at most 15 characters. */}}
{{- define "pointsman.portName" -}}
{{- if eq (int .at) 0 -}}{{ .name }}{{- else -}}{{ printf "%s-%d" .name (int .at) }}{{- end -}}
{{- end -}}

{{/* A duration such as 1m30s in whole seconds, rounded up. */}}
{{- define "pointsman.seconds" -}}
{{- $text := toString . -}}
{{- if not (regexMatch "^([0-9]+(d|h|ms|m|us|s))+$|^0$|^off$" $text) -}}
{{- fail (printf "%q is not a duration: write for example \"15s\" or \"1m30s\"" $text) -}}
{{- end -}}
{{- $units := dict "d" 86400000000 "h" 3600000000 "m" 60000000 "s" 1000000 "ms" 1000 "us" 1 -}}
{{- $micros := 0 -}}
{{- range regexFindAll "[0-9]+(d|h|ms|m|us|s)" $text -1 -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $micros = add $micros (mul $number (get $units (regexReplaceAll "^[0-9]+" . "") | int64)) -}}
{{- end -}}
{{- div (add $micros 999999) 1000000 -}}
{{- end -}}

{{/* The grace period that the drain needs, in seconds. */}}
{{- define "pointsman.grace" -}}
{{- $needed := add (include "pointsman.seconds" .shutdown.acceptMax | int) (include "pointsman.seconds" .shutdown.drainTimeout | int) 2 -}}
{{- if kindIs "invalid" .terminationGracePeriodSeconds -}}
{{- $needed -}}
{{- else if lt (int .terminationGracePeriodSeconds) (int $needed) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d; shutdown.acceptMax (%s) + shutdown.drainTimeout (%s) + 2 s need %d. Raise it, or set it to null: sessions would be killed during the drain" (int .terminationGracePeriodSeconds) .shutdown.acceptMax .shutdown.drainTimeout $needed) -}}
{{- else -}}
{{- int .terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{/* A Kubernetes quantity of memory in KiB, rounded down: 0.5Gi, 500M, 1e9, 268435456. */}}
{{- define "pointsman.kib" -}}
{{- $text := toString . -}}
{{- if not (regexMatch "^[0-9]+(\\.[0-9]*)?([eE][+]?[0-9]+|[kMGTPE]i?|Ki|m)?$" $text) -}}
{{- fail (printf "resources.limits.memory: %q is not a quantity: write for example 256Mi" $text) -}}
{{- end -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 "E" 1000000000000000000 "" 1 "m" 0.001 -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]*)?([eE][+]?[0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- divf (mulf (float64 $number) (get $units $unit | float64)) 1024 | floor | int64 -}}
{{- end -}}

{{/*
The memory of a connection in KiB, by the rule of the program (crates/pointsman/src/system/memory.rs): 32, and 8 more for each side with TLS, of the
master with the most.
*/}}
{{- define "pointsman.connectionKib" -}}
{{- $most := 0 -}}
{{- range . -}}
{{- $tls := .tls | default dict -}}
{{- $clients := ternary 8 0 (not (empty (or $tls.port $tls.replicaPort $tls.sentinelPort))) -}}
{{- $servers := ternary 8 0 (not (empty (.redisTls | default dict).enabled)) -}}
{{- $most = max $most (add $clients $servers) -}}
{{- end -}}
{{- add 32 $most -}}
{{- end -}}

{{/*
How many connections a memory limit carries, by the rule of the program: three quarters of it without 24 MiB for the process.
*/}}
{{- define "pointsman.carries" -}}
{{- $each := include "pointsman.connectionKib" .masters | int64 -}}
{{- $carries := div (sub (div (mul (include "pointsman.kib" .memory | int64) 3) 4) 24576) $each -}}
{{- if lt $carries 1 -}}
{{- fail (printf "resources.limits.memory of %s carries no connection: the process needs 24 MiB and each connection %d KiB, and a quarter stays free. Set at least 33Mi" (toString .memory) $each) -}}
{{- end -}}
{{- $carries -}}
{{- end -}}

{{/*
How many connections the masters ask for by the same rule (crates/pointsman/src/config/connection_limits.rs): each its own number or 10,000,
and as many again for its readers, and for clients of the sentinels.
*/}}
{{- define "pointsman.wanted" -}}
{{- $sum := 0 -}}
{{- range . -}}
{{- $one := int (((.settings | default dict).max_connections) | default 10000) -}}
{{- $tls := .tls | default dict -}}
{{- $sum = add $sum $one (ternary $one 0 (not (empty (or .replicaPort $tls.replicaPort)))) (ternary $one 0 (not (empty (or .sentinelPort $tls.sentinelPort)))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- define "pointsman.labels" -}}
{{- merge (dict) .standardLabels .labels | toYaml -}}
{{- end -}}

{{/* Labels of objects that other programs select by label: those of the user win. */}}
{{- define "pointsman.labelsWith" -}}
{{- merge (dict) (.more | default dict) (include "pointsman.labels" .v | fromYaml) | toYaml -}}
{{- end -}}

{{- define "pointsman.image" -}}
{{- $repository := required "image.repository is not set. Push the image to a registry that the nodes can pull from and set it, for example --set image.repository=registry.example.com/pointsman" .v.image.repository -}}
{{- $tag := .v.image.tag | default .root.Chart.AppVersion -}}
{{- if .v.image.digest -}}{{ $repository }}@{{ .v.image.digest }}{{- else -}}{{ $repository }}:{{ $tag }}{{- end -}}
{{- end -}}

{{/* A security context, without the user and groups that OpenShift assigns itself. */}}
{{- define "pointsman.security" -}}
{{- $mode := (((.v.global).compatibility).openshift).adaptSecurityContext | default "auto" -}}
{{- $there := .root.Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- if or (eq $mode "force") (and (eq $mode "auto") $there) -}}
{{- omit .context "runAsUser" "runAsGroup" "fsGroup" | toYaml -}}
{{- else -}}
{{- toYaml .context -}}
{{- end -}}
{{- end -}}

{{/* A value of the configuration in TOML. */}}
{{- define "pointsman.toml" -}}
{{- if kindIs "string" . -}}{{ . | toJson }}
{{- else if kindIs "bool" . -}}{{ . }}
{{- else if kindIs "float64" . -}}{{ if eq (float64 (int64 .)) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else if or (kindIs "int" .) (kindIs "int64" .) -}}{{ . }}
{{- else if kindIs "slice" . -}}[{{ range $at, $one := . }}{{ if $at }}, {{ end }}{{ include "pointsman.toml" $one }}{{ end }}]
{{- else -}}{ {{ range $at, $key := keys . | sortAlpha }}{{ if $at }}, {{ end }}{{ $key | toJson }} = {{ include "pointsman.toml" (get $ $key) }}{{ end }} }
{{- end -}}
{{- end -}}

{{/*
The families on which the pods listen: listenFamilies, else those that the Service asks for, else IPv4. The kubelet and the Service dial an
address of the pod, so a pod without IPv4 must listen on IPv6.
*/}}
{{- define "pointsman.families" -}}
{{- if .listenFamilies -}}{{- .listenFamilies | toJson -}}
{{- else if has .service.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack") -}}["IPv4", "IPv6"]
{{- else if .service.ipFamilies -}}{{- .service.ipFamilies | toJson -}}
{{- else -}}["IPv4"]
{{- end -}}
{{- end -}}

{{/* Every address of these families, on a port. */}}
{{- define "pointsman.listen" -}}
{{- $all := list -}}
{{- if has "IPv4" .families -}}{{- $all = append $all (printf "0.0.0.0:%d" (int .port)) -}}{{- end -}}
{{- if has "IPv6" .families -}}{{- $all = append $all (printf "[::]:%d" (int .port)) -}}{{- end -}}
{{- include "pointsman.toml" $all -}}
{{- end -}}

{{/* Keys of [[service]] that the chart writes from other values; a second one would be a duplicate. */}}
{{- define "pointsman.checkSettings" -}}
{{- range $key, $instead := merge (include "pointsman.portValues" . | fromJson) (dict "name" "name" "master" "master" "sentinels" "sentinels" "auth" "auth" "sentinel_auth" "sentinelAuth" "tls" "tls" "redis_tls" "redisTls" "sentinel_tls" "sentinelTls") -}}
{{- if hasKey ($.master.settings | default dict) $key -}}
{{- fail (printf "masters[%d].settings.%s: set masters[%d].%s instead" (int $.at) $key (int $.at) $instead) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The tables of the process as a map. extraConfig overrides single keys, so none is written twice. */}}
{{- define "pointsman.tables" -}}
{{- $v := . -}}
{{- $listen := list -}}
{{- range .adminPorts -}}
{{- $listen = concat $listen (include "pointsman.listen" (dict "families" $v.families "port" .port) | fromJsonArray) -}}
{{- end -}}
{{- $admin := dict "listen" $listen -}}
{{- if not .admin.readyWithoutMaster -}}{{- $_ := set $admin "ready_without_master" false -}}{{- end -}}
{{- with .admin.hosts -}}{{- $_ := set $admin "hosts" . -}}{{- end -}}
{{- if .admin.readToken.existingSecret -}}{{- $_ := set $admin "read_token_file" "/run/secrets/pointsman/read/token" -}}{{- end -}}
{{- with .admin.tls -}}
{{- if .existingSecret -}}
{{- $tls := dict "certificate_file" "/run/secrets/pointsman/admin/certificate" "key_file" "/run/secrets/pointsman/admin/key" -}}
{{- if has .clientCertificates (list "optional" "required") -}}
{{- $_ := mergeOverwrite $tls (dict "client_certificates" .clientCertificates "client_ca_file" "/run/secrets/pointsman/admin/ca") -}}
{{- end -}}
{{- $_ := set $admin "tls" (mergeOverwrite $tls (deepCopy (.settings | default dict))) -}}
{{- end -}}
{{- end -}}
{{- if .control.enabled -}}
{{- $_ := mergeOverwrite $admin (dict "control" true "control_socket" (printf "%s/control.sock" (trimSuffix "/" .control.stateDir))) -}}
{{- if .control.existingSecret -}}{{- $_ := set $admin "control_token_file" "/run/secrets/pointsman/control/token" -}}{{- end -}}
{{- end -}}
{{- $shutdown := dict "accept_min" .shutdown.acceptMin "accept_quiet" .shutdown.acceptQuiet "accept_max" .shutdown.acceptMax "drain_spread" .shutdown.drainSpread "drain_timeout" .shutdown.drainTimeout -}}
{{- range $ours, $theirs := dict "acceptMax" "accept_max" "drainTimeout" "drain_timeout" -}}
{{- if hasKey (($v.extraConfig).shutdown | default dict) $theirs -}}
{{- fail (printf "extraConfig.shutdown.%s: set shutdown.%s instead, which the grace period of the pod is computed from" $theirs $ours) -}}
{{- end -}}
{{- end -}}
{{- if hasKey ((.extraConfig).admin | default dict) "listen" -}}
{{- fail "extraConfig.admin.listen: set admin.port instead, which the probes and the Service use" -}}
{{- end -}}
{{- $log := dict "level" .log.level "format" .log.format -}}
{{- range $ours, $theirs := dict "linesPerSecond" "lines_per_second" "sessions" "sessions" "sessionsLevel" "sessions_level" "sessionsOneIn" "sessions_one_in" -}}
{{- $value := get $v.log $ours -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) -}}{{- $_ := set $log $theirs $value -}}{{- end -}}
{{- end -}}
{{- $process := dict "workers" (int .workers) "max_connections" (int .maxConnections) -}}
{{- $tables := mergeOverwrite (dict "admin" $admin "shutdown" $shutdown "log" $log "process" $process) (deepCopy (.extraConfig | default dict)) -}}
{{- with $tables.admin.tls -}}
{{- $_ := set $tables "admin.tls" . -}}
{{- $_ := unset $tables.admin "tls" -}}
{{- end -}}
{{- $tables | toJson -}}
{{- end -}}

{{/* What a probe requests. The kubelet verifies no certificate and has none. */}}
{{- define "pointsman.probe" -}}
{{- $get := dict "path" .path "port" .port -}}
{{- if .v.admin.tls.existingSecret -}}{{- $_ := set $get "scheme" "HTTPS" -}}{{- end -}}
{{- dict "httpGet" $get | toJson -}}
{{- end -}}

{{/* How monitors reach the admin port. */}}
{{- define "pointsman.monitorTls" -}}
{{- $tls := .admin.tls -}}
{{- if $tls.existingSecret -}}
{{- $own := $tls.monitorTlsConfig | default dict -}}
{{- if and (eq $tls.clientCertificates "required") (not (hasKey $own "cert")) -}}
{{- fail "admin.tls.clientCertificates is required: give the monitors a certificate with admin.tls.monitorTlsConfig.cert and keySecret" -}}
{{- end -}}
{{- $config := dict "ca" (dict "secret" (dict "name" $tls.existingSecret "key" $tls.ca)) "serverName" (printf "%s.%s.svc" .serviceName .namespace) -}}
{{- if $own.ca -}}{{- $_ := unset $config "ca" -}}{{- end -}}
{{- toYaml (dict "scheme" "https" "tlsConfig" (mergeOverwrite $config (deepCopy $own))) -}}
{{- end -}}
{{- end -}}

{{/* The tables of one master about TLS, as a map. The files are those of pointsman.tlsFiles. */}}
{{- define "pointsman.tlsTables" -}}
{{- $folder := printf "/run/secrets/pointsman/%d" (int .at) -}}
{{- $tables := dict -}}
{{- with .master.tls -}}
{{- if .existingSecret -}}
{{- $table := dict "certificate_files" (list (printf "%s/tls/certificate" $folder)) -}}
{{- if not .keyInCertificate -}}{{- $_ := set $table "key_files" (list (printf "%s/tls/key" $folder)) -}}{{- end -}}
{{- if has .clientCertificates (list "optional" "required") -}}
{{- $_ := mergeOverwrite $table (dict "client_certificates" .clientCertificates "client_ca_file" (printf "%s/tls/ca" $folder)) -}}
{{- end -}}
{{- $_ := set $tables "tls" (mergeOverwrite $table (deepCopy (.settings | default dict))) -}}
{{- end -}}
{{- end -}}
{{- range $name, $side := dict "redis_tls" (.master.redisTls | default dict) "sentinel_tls" (.master.sentinelTls | default dict) -}}
{{- if $side.enabled -}}
{{- $table := dict "enabled" true -}}
{{- if $side.existingSecret -}}
{{- $_ := set $table "ca_file" (printf "%s/%s/ca" $folder $name) -}}
{{- if $side.clientCertificate -}}
{{- $_ := mergeOverwrite $table (dict "certificate_file" (printf "%s/%s/certificate" $folder $name) "key_file" (printf "%s/%s/key" $folder $name)) -}}
{{- end -}}
{{- else if $side.clientCertificate -}}
{{- fail (printf "masters[%d]: clientCertificate needs existingSecret, the Secret with tls.crt and tls.key" (int $.at)) -}}
{{- end -}}
{{- $_ := set $tables $name (mergeOverwrite $table (deepCopy ($side.settings | default dict))) -}}
{{- end -}}
{{- end -}}
{{- $tables | toJson -}}
{{- end -}}

{{/* The configuration file. */}}
{{- define "pointsman.config" -}}
{{- $v := . -}}
{{- range $at, $master := .masters }}
{{- include "pointsman.checkSettings" (dict "at" $at "master" $master) }}
[[service]]
name = {{ $master.name | toJson }}
{{- with $master.master }}
master = {{ . | toJson }}
{{- end }}
{{- if not $master.port }}
listen = []
{{- end }}
{{- range include "pointsman.masterPorts" (dict "at" $at "master" $master "v" $v) | fromJsonArray }}
{{ .key }} = {{ include "pointsman.listen" (dict "families" $v.families "port" .port) }}
{{- end }}
sentinels = {{ include "pointsman.toml" $master.sentinels }}
{{- range $key := keys ($master.settings | default dict) | sortAlpha }}
{{ $key }} = {{ include "pointsman.toml" (get $master.settings $key) }}
{{- end }}
{{- range $table, $login := dict "auth" $master.auth "sentinel_auth" $master.sentinelAuth }}
{{- if and $login $login.existingSecret }}

[service.{{ $table }}]
{{- with $login.username }}
username = {{ . | toJson }}
{{- end }}
password_file = "/run/secrets/pointsman/{{ $at }}/{{ $table }}"
{{- end }}
{{- end }}
{{- range $table, $keys := include "pointsman.tlsTables" (dict "at" $at "master" $master) | fromJson }}

[service.{{ $table }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "pointsman.toml" $value }}
{{- end }}
{{- end }}
{{ end }}
{{- range $table, $keys := include "pointsman.tables" . | fromJson }}
[{{ $table }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "pointsman.toml" $value }}
{{- end }}
{{ end }}
{{- end -}}

{{/*
The name of the ConfigMap. Where a change is rolled out, each content has a name: a pod of the old revision that restarts during a bad upgrade
reads the configuration that it was made for.
*/}}
{{- define "pointsman.configMap" -}}
{{- if eq .configUpdate "roll" -}}{{ printf "%s-%s" .fullname (include "pointsman.config" . | sha256sum | trunc 10) }}{{- else -}}{{ .fullname }}{{- end -}}
{{- end -}}

{{/* The secrets as sources of a projected volume. Files, so that they are not inherited as environment variables. */}}
{{- define "pointsman.secrets" -}}
{{- $sources := list -}}
{{- range $at, $master := .masters -}}
{{- range $table, $login := dict "auth" $master.auth "sentinel_auth" $master.sentinelAuth -}}
{{- if and $login $login.existingSecret -}}
{{- $item := dict "key" ($login.key | default "password") "path" (printf "%d/%s" $at $table) -}}
{{- $sources = append $sources (dict "secret" (dict "name" $login.existingSecret "items" (list $item))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $at, $master := .masters -}}
{{- range $folder, $side := dict "tls" (.tls | default dict) "redis_tls" (.redisTls | default dict) "sentinel_tls" (.sentinelTls | default dict) -}}
{{- $isServer := eq $folder "tls" -}}
{{- if and $side.existingSecret (or $isServer $side.enabled) -}}
{{- $items := list -}}
{{- if or $isServer $side.clientCertificate -}}
{{- $items = append $items (dict "key" ($side.certificate | default "tls.crt") "path" (printf "%d/%s/certificate" $at $folder)) -}}
{{- if not $side.keyInCertificate -}}
{{- $items = append $items (dict "key" ($side.key | default "tls.key") "path" (printf "%d/%s/key" $at $folder)) -}}
{{- end -}}
{{- end -}}
{{- if or (not $isServer) (has $side.clientCertificates (list "optional" "required")) -}}
{{- $items = append $items (dict "key" ($side.ca | default "ca.crt") "path" (printf "%d/%s/ca" $at $folder)) -}}
{{- end -}}
{{- $sources = append $sources (dict "secret" (dict "name" $side.existingSecret "items" $items)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .admin.tls -}}
{{- if .existingSecret -}}
{{- $items := list (dict "key" .certificate "path" "admin/certificate") (dict "key" .key "path" "admin/key") -}}
{{- if has .clientCertificates (list "optional" "required") -}}
{{- $items = append $items (dict "key" .ca "path" "admin/ca") -}}
{{- end -}}
{{- $sources = append $sources (dict "secret" (dict "name" .existingSecret "items" $items)) -}}
{{- end -}}
{{- end -}}
{{- if .admin.readToken.existingSecret -}}
{{- $item := dict "key" .admin.readToken.key "path" "read/token" -}}
{{- $sources = append $sources (dict "secret" (dict "name" .admin.readToken.existingSecret "items" (list $item))) -}}
{{- end -}}
{{- if and .control.enabled .control.existingSecret -}}
{{- $item := dict "key" .control.key "path" "control/token" -}}
{{- $sources = append $sources (dict "secret" (dict "name" .control.existingSecret "items" (list $item))) -}}
{{- end -}}
{{- if $sources -}}{{- toYaml $sources -}}{{- end -}}
{{- end -}}
