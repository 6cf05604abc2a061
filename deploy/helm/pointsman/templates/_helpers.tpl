{{/*
What the templates share. `pointsman.values` is the first: the values as they count, after what is taken over from another chart
(_compat.tpl). Every template reads it once, so that none of them knows about compatibility.
*/}}

{{- define "pointsman.values" -}}
{{- if .Values.compat.redisHa.enabled -}}
{{- include "pointsman.redisHa" . -}}
{{- else -}}
{{- $own := deepCopy .Values -}}
{{- $ports := list -}}
{{- range $at, $master := .Values.masters -}}
{{- $ports = append $ports (dict "name" (include "pointsman.portName" (dict "at" $at "name" $master.name)) "port" $master.port "target" (int $master.port)) -}}
{{- with $master.replicaPort -}}{{- $ports = append $ports (dict "name" (include "pointsman.replicaPortName" (dict "at" $at "own" $own)) "port" . "target" (int .)) -}}{{- end -}}
{{- end -}}
{{- $ports = append $ports (dict "name" "admin" "port" .Values.admin.port "target" (int .Values.admin.port)) -}}
{{- $_ := set $own "fullname" (include "pointsman.fullname" .) -}}
{{- $_ := set $own "pdbName" (include "pointsman.fullname" .) -}}
{{- $_ := set $own "networkPolicyName" (include "pointsman.fullname" .) -}}
{{- $_ := set $own "serviceAccountName" (.Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "pointsman.fullname" .) "default")) -}}
{{- $selector := dict "app.kubernetes.io/name" (include "pointsman.name" .) "app.kubernetes.io/instance" .Release.Name -}}
{{- $_ := set $own "selector" $selector -}}
{{- $_ := set $own "serviceSelector" $selector -}}
{{- $standard := dict "app.kubernetes.io/version" (.Chart.AppVersion | quote | trimAll "\"") "app.kubernetes.io/managed-by" .Release.Service "app.kubernetes.io/component" "proxy" "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- $_ := set $own "standardLabels" (merge (dict) $selector $standard) -}}
{{- $_ := set $own "adminPorts" (list (dict "name" "admin" "port" (int .Values.admin.port))) -}}
{{- $_ := set $own "probePort" "admin" -}}
{{- $_ := set $own "servicePorts" $ports -}}
{{- $_ := set $own "anyFamily" false -}}
{{- $own | toYaml -}}
{{- end -}}
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

{{/* The name of a port: the first master's is `redis`, the others' carry their number, because a port's name has 15 letters. */}}
{{- define "pointsman.portName" -}}
{{- if eq (int .at) 0 -}}redis{{- else -}}{{ printf "redis-%d" (int .at) }}{{- end -}}
{{- end -}}

{{/* The same for the port of its readers. */}}
{{- define "pointsman.replicaPortName" -}}
{{- if .own.replicaPortName -}}{{ .own.replicaPortName }}{{- else if eq (int .at) 0 -}}readers{{- else -}}{{ printf "readers-%d" (int .at) }}{{- end -}}
{{- end -}}

{{/* A time such as 1m30s in whole seconds, rounded up. */}}
{{- define "pointsman.seconds" -}}
{{- $text := toString . -}}
{{- if not (regexMatch "^([0-9]+(d|h|ms|m|us|s))+$|^0$|^off$" $text) -}}
{{- fail (printf "%q is not a time: write for example \"15s\" or \"1m30s\"" $text) -}}
{{- end -}}
{{- $units := dict "d" 86400000000 "h" 3600000000 "m" 60000000 "s" 1000000 "ms" 1000 "us" 1 -}}
{{- $micros := 0 -}}
{{- range regexFindAll "[0-9]+(d|h|ms|m|us|s)" $text -1 -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $micros = add $micros (mul $number (get $units (regexReplaceAll "^[0-9]+" . "") | int64)) -}}
{{- end -}}
{{- div (add $micros 999999) 1000000 -}}
{{- end -}}

{{/* The grace that the drain needs, in seconds; what is given must not be less. */}}
{{- define "pointsman.grace" -}}
{{- $needed := add (include "pointsman.seconds" .shutdown.acceptMax | int) (include "pointsman.seconds" .shutdown.drainTimeout | int) 2 -}}
{{- if kindIs "invalid" .terminationGracePeriodSeconds -}}
{{- $needed -}}
{{- else if lt (int .terminationGracePeriodSeconds) (int $needed) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, but shutdown.acceptMax (%s) + shutdown.drainTimeout (%s) + 2 s need %d: sessions would be killed in the middle of a drain" (int .terminationGracePeriodSeconds) .shutdown.acceptMax .shutdown.drainTimeout $needed) -}}
{{- else -}}
{{- int .terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{/* A quantity of memory in KiB. */}}
{{- define "pointsman.kib" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9]+" $text | int64 -}}
{{- $units := dict "Ki" 1 "Mi" 1024 "Gi" 1048576 "K" 1 "k" 1 "M" 976 "G" 976562 -}}
{{- $unit := regexReplaceAll "^[0-9.]+" $text "" -}}
{{- if hasKey $units $unit -}}{{- mul $number (get $units $unit | int64) -}}{{- else -}}{{- div $number 1024 -}}{{- end -}}
{{- end -}}

{{/*
How many connections a memory limit carries, by the rule of the program itself (crates/pointsman/src/memory.rs): three quarters of it
without 24 MiB for the process, at 32 KiB a connection.
*/}}
{{- define "pointsman.carries" -}}
{{- max 1 (div (sub (div (mul (include "pointsman.kib" . | int64) 3) 4) 24576) 32) -}}
{{- end -}}

{{/*
How many connections the masters want by the same rule (crates/pointsman/src/config/limits.rs): each its own number or 10000, and the
same again for its readers.
*/}}
{{- define "pointsman.wanted" -}}
{{- $sum := 0 -}}
{{- range . -}}
{{- $one := int (((.settings | default dict).max_connections) | default 10000) -}}
{{- $sum = add $sum $one (ternary $one 0 (not (empty .replicaPort))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- define "pointsman.labels" -}}
{{- merge (dict) .standardLabels .labels | toYaml -}}
{{- end -}}

{{- define "pointsman.image" -}}
{{- $tag := .v.image.tag | default .root.Chart.AppVersion -}}
{{- if .v.image.digest -}}{{ .v.image.repository }}@{{ .v.image.digest }}{{- else -}}{{ .v.image.repository }}:{{ $tag }}{{- end -}}
{{- end -}}

{{/* A value of the configuration in TOML. */}}
{{- define "pointsman.toml" -}}
{{- if kindIs "string" . -}}{{ . | toJson }}
{{- else if kindIs "bool" . -}}{{ . }}
{{- else if kindIs "float64" . -}}{{ int64 . }}
{{- else if or (kindIs "int" .) (kindIs "int64" .) -}}{{ . }}
{{- else if kindIs "slice" . -}}[{{ range $at, $one := . }}{{ if $at }}, {{ end }}{{ include "pointsman.toml" $one }}{{ end }}]
{{- else -}}{ {{ range $at, $key := keys . | sortAlpha }}{{ if $at }}, {{ end }}{{ $key | toJson }} = {{ include "pointsman.toml" (get $ $key) }}{{ end }} }
{{- end -}}
{{- end -}}

{{/* Addresses on a port: every IPv4 address, and IPv6 where the pod may have it. */}}
{{- define "pointsman.listen" -}}
{{- if .any -}}["0.0.0.0:{{ int .port }}", "[::]:{{ int .port }}"]{{- else -}}["0.0.0.0:{{ int .port }}"]{{- end -}}
{{- end -}}

{{/* The configuration as a file. */}}
{{- define "pointsman.config" -}}
{{- $v := . -}}
{{- range $at, $master := .masters }}
[[service]]
name = {{ $master.name | toJson }}
listen = {{ include "pointsman.listen" (dict "any" $v.anyFamily "port" $master.port) }}
{{- with $master.replicaPort }}
replica_listen = {{ include "pointsman.listen" (dict "any" $v.anyFamily "port" .) }}
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
{{ end }}
[admin]
listen = [{{ range $at, $port := .adminPorts }}{{ if $at }}, {{ end }}{{ include "pointsman.listen" (dict "any" $v.anyFamily "port" $port.port) | trimPrefix "[" | trimSuffix "]" }}{{ end }}]
{{- if not .admin.readyWithoutMaster }}
ready_without_master = false
{{- end }}

[shutdown]
accept_min = {{ .shutdown.acceptMin | toJson }}
accept_quiet = {{ .shutdown.acceptQuiet | toJson }}
accept_max = {{ .shutdown.acceptMax | toJson }}
drain_spread = {{ .shutdown.drainSpread | toJson }}
drain_timeout = {{ .shutdown.drainTimeout | toJson }}

[log]
level = {{ .log.level | toJson }}
format = {{ .log.format | toJson }}

[process]
workers = {{ int .workers }}
max_connections = {{ int .maxConnections }}
{{- with .extraConfig }}

{{ . }}
{{- end }}
{{- end -}}

{{/* The passwords as sources of a projected volume: files, so that a new one needs no new pod. */}}
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
{{- if $sources -}}{{- toYaml $sources -}}{{- end -}}
{{- end -}}
