// Package config is the agent's configuration: what configuration files and flags
// say, what holds when they say nothing, and what they may not say.
//
// A configuration has two parts. One is kube-proxy's own KubeProxyConfiguration, as
// it stands in a cluster's ConfigMap. The other, a [BeelineConfiguration], holds what
// kube-proxy has no word for. Both are read from files, flags are set over them, and
// [Config.Settings] turns the whole into what the agent's parts are started with.
//
// It exports more than 25 names because each section of the files is a type.
package config
