{{/*
In place of the redis-ha chart's haproxy: that chart's values in, ours out. The pods carry the labels by which its Service selects
haproxy, and by which its NetworkPolicy admits it to Redis, so they join haproxy's pods behind the same Service. All our objects have
names of their own: the two releases never own the same object. If haproxy is off in that release it has no Service, and ours is
created under that name. Values without a counterpart are ignored (deploy/redis-ha.md lists them) or refused, never taken silently.
*/}}

{{- define "pointsman.redisHa" -}}
{{- $own := .own -}}
{{- $root := .root -}}
{{- $given := $root.Values.compat.redisHa.values | default dict -}}
{{- $ha := mergeOverwrite (include "pointsman.redisHaDefaults" . | fromYaml) (deepCopy $given) -}}
{{- $haproxy := $ha.haproxy -}}
{{- include "pointsman.redisHaRefusals" $ha -}}
{{- if not (hasKey ($given.haproxy | default dict) "enabled") -}}
{{- fail "compat.redisHa.values has no haproxy.enabled: set it to the values of the redis-ha release (helm get values). Set haproxy.enabled to false there if that release has no haproxy; then its Service is created here" -}}
{{- end -}}
{{- $release := $root.Values.compat.redisHa.release | default $root.Release.Name -}}
{{- $name := default "redis-ha" $ha.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- $full := printf "%s-%s" $release $name -}}
{{- if $ha.fullnameOverride -}}{{- $full = $ha.fullnameOverride -}}{{- else if contains $name $release -}}{{- $full = $release -}}{{- end -}}
{{- $full = $full | trunc 63 | trimSuffix "-" -}}
{{- $join := dict "app" (printf "%s-haproxy" $name) "release" $release -}}
{{- $context := dict "Release" (mergeOverwrite (deepCopy ($root.Release | toJson | fromJson)) (dict "Name" $release)) "Values" $ha "Chart" (dict "Name" "redis-ha") "Capabilities" $root.Capabilities "Template" $root.Template -}}
{{- $set := dict
      "serviceName" (printf "%s-haproxy" $full)
      "createService" (not $haproxy.enabled)
      "serviceLabels" (dict "app" $name "release" $release "component" "haproxy")
      "serviceSelector" $join
      "selector" (merge (dict "component" "pointsman" "app.kubernetes.io/instance" $root.Release.Name) $join)
      "portNames" (dict "client" "redis" "replica" "readonlyport")
      "families" ($root.Values.listenFamilies | default (ternary (list "IPv4" "IPv6") (list "IPv4") (eq true $haproxy.IPv6.enabled))) -}}
{{- range $key, $value := $set -}}{{- $_ := set $own $key $value -}}{{- end -}}
{{- if kindIs "invalid" $root.Values.replicas -}}
{{- with int $haproxy.replicas -}}{{- $_ := set $own "replicas" . -}}{{- end -}}
{{- end -}}
{{- include "pointsman.redisHaUnused" (dict "own" $own "release" $release) -}}
{{- $all := dict "own" $own "ha" $ha "haproxy" $haproxy "full" $full "name" $name "namespace" $root.Release.Namespace "context" $context -}}
{{- $_ := include "pointsman.redisHaPorts" $all -}}
{{- $_ := include "pointsman.redisHaMaster" $all -}}
{{- $_ := include "pointsman.redisHaPod" $all -}}
{{- $_ := include "pointsman.redisHaObjects" $all -}}
{{- $_ := include "pointsman.redisHaPolicies" $all -}}
{{- end -}}

{{/* The defaults of that chart, as far as anything here depends on them. */}}
{{- define "pointsman.redisHaDefaults" -}}
replicas: 3
authKey: auth
redis: {port: 6379, masterGroupName: mymaster}
sentinel: {port: 26379, authKey: sentinel-password}
networkPolicy: {enabled: false, ingressRules: []}
topologySpreadConstraints: {enabled: false}
haproxy:
  enabled: false
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
  IPv6: {enabled: true}
  networkPolicy: {}
{{- end -}}

{{- define "pointsman.redisHaRefusals" -}}
{{- $at := "compat.redisHa.values" -}}
{{- if .haproxy.customConfig -}}
{{- fail (printf "%s.haproxy.customConfig cannot be translated by the chart: run `pointsman import haproxy` on it, and set the result as masters and extraConfig without compat.redisHa" $at) -}}
{{- end -}}
{{- range splitList "\n" (.haproxy.extraConfig | default "") -}}
{{- if not (regexMatch "^\\s*(#.*|global|maxconn\\s+[0-9]+)?\\s*$" .) -}}
{{- fail (printf "%s.haproxy.extraConfig: only `maxconn` in `global` can be translated, not %q: remove the line from the values given here, or run `pointsman import haproxy` on the whole file" $at (trim .)) -}}
{{- end -}}
{{- end -}}
{{- if and .haproxy.tls.enabled (not (and .haproxy.tls.secretName .haproxy.tls.keyName)) -}}
{{- fail (printf "%s.haproxy.tls: secretName and keyName are needed, the entry with the certificate and its key" $at) -}}
{{- end -}}
{{- if .haproxy.additionalPorts -}}
{{- fail (printf "%s.haproxy.additionalPorts belong to a haproxy configuration of your own: no port of Pointsman has these names. Remove them from that release first" $at) -}}
{{- end -}}
{{- if or (eq (int .redis.port) 0) (eq (int .sentinel.port) 0) -}}
{{- fail (printf "%s: redis.port and sentinel.port must not be 0. With TLS only, install the chart without compat.redisHa, and set masters[].redisTls and masters[].sentinelTls" $at) -}}
{{- end -}}
{{- end -}}

{{/* Values of ours that have no effect beside that release. */}}
{{- define "pointsman.redisHaUnused" -}}
{{- if gt (len .own.masters) 1 -}}
{{- fail "masters: with compat.redisHa there is one master, that of the redis-ha release; only masters[0].settings is read. Install a second release for other masters" -}}
{{- end -}}
{{- if not .own.createService -}}
{{- range $key, $value := .own.service -}}
{{- if and $value (not (has (toString $value) (list "ClusterIP" "auto" "None"))) -}}
{{- fail (printf "service.%s has no effect: the Service is that of release %s. Set haproxy.service.%s there, or enable replicaService for one of your own" $key $.release $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Ports under the names that the Service of that chart has as its targets. */}}
{{- define "pointsman.redisHaPorts" -}}
{{- $haproxy := .haproxy -}}
{{- $admin := list (dict "name" "probe" "port" (int .own.admin.port)) -}}
{{- $ports := list (dict "name" "tcp-haproxy" "port" $haproxy.servicePort "target" "redis") -}}
{{- $replicaPorts := list -}}
{{- if $haproxy.readOnly.enabled -}}
{{- $port := dict "name" "tcp-haproxyreadonly" "port" $haproxy.readOnly.port "target" (int $haproxy.readOnly.port) -}}
{{- $replicaPorts = list $port -}}
{{- if not .own.replicaService.enabled -}}{{- $ports = append $ports $port -}}{{- end -}}
{{- end -}}
{{- if $haproxy.metrics.enabled -}}
{{- $admin = append $admin (dict "name" "metrics-port" "port" $haproxy.metrics.port) -}}
{{- $ports = append $ports (dict "name" $haproxy.metrics.portName "port" $haproxy.metrics.port "target" "metrics-port") -}}
{{- end -}}
{{- $_ := set .own "adminPorts" $admin -}}
{{- $_ := set .own "servicePorts" $ports -}}
{{- $_ := set .own "replicaServicePorts" $replicaPorts -}}
{{- end -}}

{{/* The one master, its sentinels at the announce Services, and the Secrets. Templates are expanded as that chart would. */}}
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
{{- $master := dict "name" (tpl $ha.redis.masterGroupName .context) "port" $ha.haproxy.containerPort "sentinels" $sentinels "settings" $settings "auth" dict "sentinelAuth" dict -}}
{{- if $ha.haproxy.tls.enabled -}}
{{- $tls := dict "port" $ha.haproxy.containerPort "existingSecret" (tpl $ha.haproxy.tls.secretName .context) "certificate" $ha.haproxy.tls.keyName "keyInCertificate" true -}}
{{- $_ := set (set $master "tls" $tls) "port" nil -}}
{{- end -}}
{{- if $ha.haproxy.readOnly.enabled -}}
{{- $_ := set $master "replicaPort" $ha.haproxy.readOnly.port -}}
{{- end -}}
{{- if $ha.auth -}}
{{- $secret := tpl ($ha.existingSecret | default "") .context | default $full -}}
{{- $_ := set $master "auth" (dict "existingSecret" $secret "key" $ha.authKey) -}}
{{- end -}}
{{- if $ha.sentinel.auth -}}
{{- $secret := tpl ($ha.sentinel.existingSecret | default "") .context | default (printf "%s-sentinel" $full) -}}
{{- $_ := set $master "sentinelAuth" (dict "existingSecret" $secret "key" $ha.sentinel.authKey) -}}
{{- end -}}
{{- $_ := set .own "masters" (list $master) -}}
{{- $_ := set .own.networkPolicy "redisPorts" (list (int $ha.redis.port) (int $ha.sentinel.port)) -}}
{{- $maxconn := regexFind "maxconn\\s+[0-9]+" (regexReplaceAll "#[^\n]*" ($ha.haproxy.extraConfig | default "") "") -}}
{{- if and $maxconn (eq (int .own.maxConnections) 0) -}}
{{- $_ := set .own "maxConnections" (regexFind "[0-9]+" $maxconn | int) -}}
{{- end -}}
{{- end -}}

{{/* The pods. Values that are empty there leave ours as they are. */}}
{{- define "pointsman.redisHaPod" -}}
{{- $own := .own -}}
{{- $ha := .ha -}}
{{- $haproxy := .haproxy -}}
{{- range $ours, $theirs := dict "imagePullSecrets" "imagePullSecrets" "podAnnotations" "podAnnotations" "annotations" "deploymentAnnotations" "priorityClassName" "priorityClassName" "resources" "resources" -}}
{{- with get $haproxy $theirs -}}{{- $_ := set $own $ours . -}}{{- end -}}
{{- end -}}
{{- with $haproxy.deploymentStrategy -}}{{- if or .rollingUpdate (ne .type "RollingUpdate") -}}{{- $_ := set $own "deploymentStrategy" . -}}{{- end -}}{{- end -}}
{{- with ($ha.global).priorityClassName -}}{{- if not $haproxy.priorityClassName -}}{{- $_ := set $own "priorityClassName" . -}}{{- end -}}{{- end -}}
{{- with ($ha.global).compatibility -}}{{- $_ := set $own "global" (mergeOverwrite (deepCopy $own.global) (dict "compatibility" .)) -}}{{- end -}}
{{- with $ha.nodeSelector -}}{{- $_ := set $own "nodeSelector" . -}}{{- end -}}
{{- with $ha.tolerations -}}{{- $_ := set $own "tolerations" . -}}{{- end -}}
{{- with $ha.topologySpreadConstraints -}}
{{- if .enabled -}}
{{- $one := dict "maxSkew" (int (.maxSkew | default 1)) "topologyKey" (.topologyKey | default "topology.kubernetes.io/zone") "whenUnsatisfiable" (.whenUnsatisfiable | default "ScheduleAnyway") -}}
{{- $_ := set $own "topologySpreadConstraints" (append $own.topologySpreadConstraints $one) -}}
{{- $_ := set $own "topologySpread" (without ($own.topologySpread | default list) $one.topologyKey) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $own "podLabels" (merge (dict) ($haproxy.labels | default dict) ($ha.extraLabels | default dict) ($own.podLabels | default dict)) -}}
{{- $_ := set $own "labels" (merge (dict) ($ha.extraLabels | default dict) ($own.labels | default dict)) -}}
{{- $_ := set $own "podSecurityContext" (mergeOverwrite (deepCopy $own.podSecurityContext) ($haproxy.securityContext | default dict)) -}}
{{- $_ := set $own "securityContext" (mergeOverwrite (deepCopy $own.securityContext) ($haproxy.containerSecurityContext | default dict) (dict "readOnlyRootFilesystem" true)) -}}
{{- with $haproxy.affinity -}}{{- if trim . -}}{{- $_ := set $own "affinity" (tpl . $.context | fromYaml) -}}{{- end -}}{{- end -}}
{{- if and (not $own.affinity) $haproxy.additionalAffinities -}}{{- $_ := set $own "affinity" $haproxy.additionalAffinities -}}{{- end -}}
{{- if and $haproxy.metrics.enabled (not $haproxy.metrics.serviceMonitor.enabled) -}}
{{- $scrape := dict "prometheus.io/port" (printf "%d" (int $haproxy.metrics.port)) "prometheus.io/scrape" "true" "prometheus.io/path" "/metrics" -}}
{{- $_ := set $own "podAnnotations" (merge (dict) ($own.podAnnotations | default dict) $scrape) -}}
{{- end -}}
{{- end -}}

{{/* The objects around the pods. That chart's ServiceMonitor selects its Service and so scrapes our pods; ours is not created for it. */}}
{{- define "pointsman.redisHaObjects" -}}
{{- $own := .own -}}
{{- $haproxy := .haproxy -}}
{{- if $own.createService -}}
{{- $_ := set $own "service" (mergeOverwrite (deepCopy $own.service) (include "pointsman.withoutEmpty" $haproxy.service | fromYaml)) -}}
{{- end -}}
{{- with $haproxy.podDisruptionBudget -}}{{- $_ := set $own "podDisruptionBudget" (merge (dict "enabled" true) . (dict "minAvailable" nil "maxUnavailable" nil)) -}}{{- end -}}
{{- if not $haproxy.serviceAccount.create -}}
{{- $_ := set $own "serviceAccountName" $haproxy.serviceAccountName -}}
{{- $_ := set $own.serviceAccount "create" false -}}
{{- end -}}
{{- end -}}

{{/*
NetworkPolicies. Ours takes over the rules of haproxy's. That of Redis admits haproxy's labels only while haproxy is enabled there: without
a rule of its own for them Redis would be cut off, which is refused.
*/}}
{{- define "pointsman.redisHaPolicies" -}}
{{- $own := .own -}}
{{- $ha := .ha -}}
{{- $context := .context -}}
{{- with .haproxy.networkPolicy -}}
{{- if .enabled -}}
{{- $redis := dict "podSelector" (dict "matchLabels" (dict "release" $own.serviceSelector.release "app" $.name)) -}}
{{- $rules := list -}}
{{- range .ingressRules -}}
{{- $rules = append $rules (dict "from" (tpl (toYaml .selectors) $context | fromYamlArray) "ports" (.ports | default list)) -}}
{{- end -}}
{{- $egress := list -}}
{{- range .egressRules -}}{{- $egress = append $egress (dict "to" (tpl (toYaml .selectors) $context | fromYamlArray) "ports" .ports) -}}{{- end -}}
{{- $policy := dict "enabled" true "annotations" (.annotations | default dict) "labels" (.labels | default dict) "clients" (list $redis) "clientRules" $rules "extraEgress" (concat $own.networkPolicy.extraEgress $egress) -}}
{{- $_ := set $own "networkPolicy" (mergeOverwrite (deepCopy $own.networkPolicy) $policy) -}}
{{- end -}}
{{- end -}}
{{- if and $ha.networkPolicy.enabled (not .haproxy.enabled) -}}
{{- $pod := merge (dict) $own.selector ($own.podLabels | default dict) -}}
{{- $admitted := false -}}
{{- range $ha.networkPolicy.ingressRules -}}
{{- range tpl (toYaml .selectors) $context | fromYamlArray -}}
{{- if and (hasKey . "podSelector") (not .namespaceSelector) -}}
{{- $matches := true -}}
{{- range $key, $value := (.podSelector).matchLabels -}}{{- if ne (get $pod $key | toString) (toString $value) -}}{{- $matches = false -}}{{- end -}}{{- end -}}
{{- if $matches -}}{{- $admitted = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $admitted -}}
{{- fail (printf "the NetworkPolicy of redis-ha admits the proxy only with haproxy.enabled, so Redis and the sentinels would be cut off. Add this entry to networkPolicy.ingressRules of that release and to compat.redisHa.values: {selectors: [{podSelector: {matchLabels: %s}}]}" ($own.serviceSelector | toJson)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A map without empty values: that chart writes null, "" or [] for a value that is not set. */}}
{{- define "pointsman.withoutEmpty" -}}
{{- $kept := dict -}}
{{- range $key, $value := . -}}{{- if $value -}}{{- $_ := set $kept $key $value -}}{{- end -}}{{- end -}}
{{- $kept | toYaml -}}
{{- end -}}
