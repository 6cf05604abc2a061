{{/*
In the place of the redis-ha chart's haproxy: that chart's values in, ours out. Names, ports, labels, selectors and secrets stay as
they were, so that clients, monitors and the network policies of Redis notice nothing. What haproxy was told and Pointsman has no use
for is left out here and explained in docs/migrating-from-haproxy.md; what cannot be taken over is refused instead of forgotten.
*/}}

{{- define "pointsman.redisHa" -}}
{{- $own := deepCopy .Values -}}
{{- $given := .Values.compat.redisHa.values | default dict -}}
{{- $ha := mergeOverwrite (include "pointsman.redisHaDefaults" . | fromYaml) (deepCopy $given) -}}
{{- $haproxy := $ha.haproxy -}}
{{- if $haproxy.customConfig -}}
{{- fail "compat.redisHa.values.haproxy.customConfig cannot be taken over by the chart: run `pointsman import haproxy` on it and give the result as masters and extraConfig" -}}
{{- end -}}
{{- if $haproxy.extraConfig -}}
{{- fail "compat.redisHa.values.haproxy.extraConfig is for haproxy: take it out, or run `pointsman import haproxy` on the whole file" -}}
{{- end -}}
{{- if $haproxy.tls.enabled -}}
{{- fail "compat.redisHa.values.haproxy.tls is not taken over: this version has no TLS towards clients" -}}
{{- end -}}
{{- if $haproxy.additionalPorts -}}
{{- fail "compat.redisHa.values.haproxy.additionalPorts belong to a configuration of your own: take them out" -}}
{{- end -}}
{{- $release := .Values.compat.redisHa.release | default .Release.Name -}}
{{- $name := default "redis-ha" $ha.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- $full := printf "%s-%s" $release $name -}}
{{- if $ha.fullnameOverride -}}{{- $full = $ha.fullnameOverride -}}{{- else if contains $name $release -}}{{- $full = $release -}}{{- end -}}
{{- $full = $full | trunc 63 | trimSuffix "-" -}}
{{- $set := dict
      "fullname" (printf "%s-haproxy" $full)
      "pdbName" (printf "%s-haproxy-pdb" $full)
      "networkPolicyName" (printf "%s-haproxy-network-policy" $full)
      "selector" (dict "app" (printf "%s-haproxy" $name) "release" $release "component" "haproxy")
      "serviceSelector" (dict "release" $release "app" (printf "%s-haproxy" $name))
      "serviceMonitorSelector" (dict "app" $name "release" $release "component" "haproxy")
      "standardLabels" (dict "app" $name "release" $release "heritage" .Release.Service "component" "haproxy" "chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_"))
      "anyFamily" $haproxy.IPv6.enabled
      "replicas" $haproxy.replicas -}}
{{- $own = mergeOverwrite $own $set -}}
{{- $_ := include "pointsman.redisHaPorts" (dict "own" $own "haproxy" $haproxy) -}}
{{- $_ := include "pointsman.redisHaMaster" (dict "own" $own "ha" $ha "full" $full "namespace" .Release.Namespace "root" .) -}}
{{- $_ := include "pointsman.redisHaPod" (dict "own" $own "ha" $ha "full" $full "root" .) -}}
{{- $own | toYaml -}}
{{- end -}}

{{/* That chart's defaults, as far as anything here depends on them. */}}
{{- define "pointsman.redisHaDefaults" -}}
replicas: 3
authKey: auth
redis: {port: 6379, masterGroupName: mymaster}
sentinel: {port: 26379, authKey: sentinel-password}
haproxy:
  servicePort: 6379
  containerPort: 6379
  replicas: 3
  tls: {}
  readOnly: {enabled: false, port: 6380}
  metrics: {enabled: false, port: 9101, portName: http-exporter-port, scrapePath: /metrics, serviceMonitor: {}}
  service: {type: ClusterIP}
  serviceAccount: {create: true}
  serviceAccountName: redis-sa
  timeout: {connect: 4s}
  hardAntiAffinity: true
  IPv6: {enabled: true}
  networkPolicy: {}
{{- end -}}

{{/* Ports of the container and of the Service, under their old names. */}}
{{- define "pointsman.redisHaPorts" -}}
{{- $haproxy := .haproxy -}}
{{- $admin := list (dict "name" "probe" "port" 8888) -}}
{{- $ports := list (dict "name" "tcp-haproxy" "port" $haproxy.servicePort "target" "redis") -}}
{{- if $haproxy.readOnly.enabled -}}
{{- $ports = append $ports (dict "name" "tcp-haproxyreadonly" "port" $haproxy.readOnly.port "target" (int $haproxy.readOnly.port)) -}}
{{- $_ := set .own "replicaPortName" "readonlyport" -}}
{{- end -}}
{{- if $haproxy.metrics.enabled -}}
{{- $admin = append $admin (dict "name" "metrics-port" "port" $haproxy.metrics.port) -}}
{{- $ports = append $ports (dict "name" $haproxy.metrics.portName "port" $haproxy.metrics.port "target" "metrics-port") -}}
{{- end -}}
{{- $_ := mergeOverwrite .own (dict "adminPorts" $admin "probePort" "probe" "servicePorts" $ports) -}}
{{- end -}}

{{/* The one master, its sentinels behind the announce Services, and the Secrets. */}}
{{- define "pointsman.redisHaMaster" -}}
{{- $ha := .ha -}}
{{- $full := .full -}}
{{- $suffix := ternary (printf ".%s.svc" .namespace) "" (eq true $ha.sentinel.resolveHostnames) -}}
{{- $sentinels := list -}}
{{- range $at := until (int $ha.replicas) -}}
{{- $sentinels = append $sentinels (printf "%s-announce-%d%s:%d" $full $at $suffix (int $ha.sentinel.port)) -}}
{{- end -}}
{{- $first := first .own.masters | default dict -}}
{{- $settings := merge (dict) ($first.settings | default dict) (dict "connect_timeout" $ha.haproxy.timeout.connect) -}}
{{- $master := dict "name" (tpl $ha.redis.masterGroupName .root) "port" $ha.haproxy.containerPort "sentinels" $sentinels "settings" $settings "auth" dict "sentinelAuth" dict -}}
{{- if $ha.haproxy.readOnly.enabled -}}
{{- $_ := set $master "replicaPort" $ha.haproxy.readOnly.port -}}
{{- end -}}
{{- if $ha.auth -}}
{{- $secret := tpl ($ha.existingSecret | default $full) .root -}}
{{- $_ := set $master "auth" (dict "existingSecret" $secret "key" $ha.authKey) -}}
{{- end -}}
{{- if $ha.sentinel.auth -}}
{{- $secret := tpl ($ha.sentinel.existingSecret | default (printf "%s-sentinel" $full)) .root -}}
{{- $_ := set $master "sentinelAuth" (dict "existingSecret" $secret "key" $ha.sentinel.authKey) -}}
{{- end -}}
{{- $_ := set .own "masters" (list $master) -}}
{{- $_ := set .own.networkPolicy "redisPorts" (list (int $ha.redis.port) (int $ha.sentinel.port)) -}}
{{- end -}}

{{/* What is about the pods and the objects around them. What that chart leaves empty stays as it is here. */}}
{{- define "pointsman.redisHaPod" -}}
{{- $own := .own -}}
{{- $ha := .ha -}}
{{- $haproxy := $ha.haproxy -}}
{{- range $ours, $theirs := dict "imagePullSecrets" "imagePullSecrets" "podAnnotations" "podAnnotations" "annotations" "deploymentAnnotations" "priorityClassName" "priorityClassName" "resources" "resources" "securityContext" "containerSecurityContext" -}}
{{- with get $haproxy $theirs -}}{{- $_ := set $own $ours . -}}{{- end -}}
{{- end -}}
{{- with $haproxy.deploymentStrategy -}}{{- if .rollingUpdate -}}{{- $_ := set $own "strategy" . -}}{{- end -}}{{- end -}}
{{- with ($ha.global).priorityClassName -}}{{- if not $haproxy.priorityClassName -}}{{- $_ := set $own "priorityClassName" . -}}{{- end -}}{{- end -}}
{{- with $ha.nodeSelector -}}{{- $_ := set $own "nodeSelector" . -}}{{- end -}}
{{- with $ha.tolerations -}}{{- $_ := set $own "tolerations" . -}}{{- end -}}
{{- $_ := set $own "podLabels" (merge (dict) ($haproxy.labels | default dict) ($ha.extraLabels | default dict) ($own.podLabels | default dict)) -}}
{{- $_ := set $own "labels" (merge (dict) ($ha.extraLabels | default dict) ($own.labels | default dict)) -}}
{{- $_ := set $own "podSecurityContext" (merge (dict) ($haproxy.securityContext | default dict) (dict "runAsNonRoot" true "runAsUser" 99 "runAsGroup" 99 "fsGroup" 99 "seccompProfile" (dict "type" "RuntimeDefault"))) -}}
{{- $_ := set $own "securityContext" (merge (dict) (deepCopy $own.securityContext) (dict "readOnlyRootFilesystem" true)) -}}
{{- with $haproxy.affinity -}}{{- if trim . -}}{{- $_ := set $own "affinity" (tpl . $.root | fromYaml) -}}{{- end -}}{{- end -}}
{{- if and (not $own.affinity) $haproxy.additionalAffinities -}}{{- $_ := set $own "affinity" $haproxy.additionalAffinities -}}{{- end -}}
{{- $_ := set $own "service" (mergeOverwrite (deepCopy $own.service) (include "pointsman.withoutEmpty" $haproxy.service | fromYaml)) -}}
{{- with $haproxy.podDisruptionBudget -}}{{- $_ := set $own "podDisruptionBudget" (merge (dict "enabled" true) . (dict "minAvailable" nil)) -}}{{- end -}}
{{- $account := $haproxy.serviceAccount.create | ternary (printf "%s-haproxy" .full) $haproxy.serviceAccountName -}}
{{- $_ := set $own "serviceAccountName" $account -}}
{{- $_ := set $own.serviceAccount "create" $haproxy.serviceAccount.create -}}
{{- with $haproxy.metrics.serviceMonitor -}}
{{- if and .enabled $haproxy.metrics.enabled -}}
{{- $_ := set $own "serviceMonitor" (dict "enabled" true "namespace" .namespace "labels" (.labels | default dict) "interval" .interval "scrapeTimeout" .timeout "extra" (.endpointAdditionalProperties | default dict)) -}}
{{- end -}}
{{- end -}}
{{- if and $haproxy.metrics.enabled (not $haproxy.metrics.serviceMonitor.enabled) -}}
{{- $scrape := dict "prometheus.io/port" (printf "%d" (int $haproxy.metrics.port)) "prometheus.io/scrape" "true" "prometheus.io/path" "/metrics" -}}
{{- $_ := set $own "podAnnotations" (merge (dict) ($own.podAnnotations | default dict) $scrape) -}}
{{- end -}}
{{- with $haproxy.networkPolicy -}}
{{- if .enabled -}}
{{- $policy := deepCopy $own.networkPolicy -}}
{{- $_ := mergeOverwrite $policy (dict "enabled" true "annotations" (.annotations | default dict) "labels" (.labels | default dict)) -}}
{{- $ports := list (dict "port" (int $haproxy.containerPort) "protocol" "TCP") -}}
{{- $clients := list (dict "podSelector" (dict "matchLabels" (dict "release" $own.selector.release "app" ($own.selector.app | trimSuffix "-haproxy")))) -}}
{{- range .ingressRules -}}{{- $clients = concat $clients .selectors -}}{{- end -}}
{{- $_ := set $policy "clients" $clients -}}
{{- $egress := list -}}
{{- range .egressRules -}}{{- $egress = append $egress (dict "to" .selectors "ports" .ports) -}}{{- end -}}
{{- $_ := set $policy "extraEgress" $egress -}}
{{- $_ := set $own "networkPolicy" $policy -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A map without what is empty: that chart spells "not given" as null, "" or []. */}}
{{- define "pointsman.withoutEmpty" -}}
{{- $kept := dict -}}
{{- range $key, $value := . -}}{{- if $value -}}{{- $_ := set $kept $key $value -}}{{- end -}}{{- end -}}
{{- $kept | toYaml -}}
{{- end -}}
