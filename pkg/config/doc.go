// Package config is the agent's configuration: files, flags, their defaults and their
// validation.
//
// A configuration has two parts. One is kube-proxy's own KubeProxyConfiguration, as
// it stands in a cluster's ConfigMap. The other, a [BeelineConfiguration], holds the
// settings that kube-proxy does not have. Both are read from files, flags are set over
// them, and [Config.Settings] turns the whole into the settings of each part of the agent.
//
// It exports more than 25 names because each section of the files is a type.
package config
