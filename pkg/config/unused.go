package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// unused are the fields of kube-proxy that have no effect, or hold others of that kind.
// The mode says only which of the sections counts.
var unused = []string{
	"featureGates",
	"showHiddenMetricsForVersion",
	"mode",
	"iptables",
	"ipvs",
	"nftables",
	"winkernel",
	"configSyncPeriod", // changes are watched, nothing is refreshed by time
	"portRange",
	"windowsRunAsService",
}

// Unknown returns how many fields of kube-proxy's part are not those of the version that
// Beeline knows, and the first of them with file and line. They have no effect.
func (c *Config) Unknown() (count int, first []error) {
	return len(c.origin.unknown), yamldoc.InFile(c.origin.places[KubeProxyKind].file, c.origin.unknown)
}

// Unused returns the fields of kube-proxy's configuration that are set to something
// else than its default and have no effect, sorted.
func (c *Config) Unused() []string {
	var fields []string
	given, defaults := tree(c.KubeProxy), tree(Default().KubeProxy)
	for _, name := range unused {
		fields = append(fields, differences(name, given[name], defaults[name])...)
	}
	used := c.used()
	fields = slices.DeleteFunc(fields, func(path string) bool { return used[path] })
	slices.Sort(fields)
	return fields
}

// used returns those fields among the unused that have an effect, or say what is the
// case anyway.
func (c *Config) used() map[string]bool {
	section := c.section()
	_, known := scheduled(c.KubeProxy.IPVS.Scheduler)
	used := map[string]bool{
		"ipvs.scheduler":                      known && c.Beeline.Algorithm == "",
		section.name + ".syncPeriod":          true,
		section.name + ".minSyncPeriod":       true,
		section.masquerade + ".masqueradeAll": true,
		"mode":                                c.KubeProxy.Mode == "iptables",
		"featureGates." + externalIPsFeature:  true,
	}
	k := &c.KubeProxy
	for name, period := range map[string]time.Duration{
		"iptables": k.IPTables.MinSyncPeriod.Duration,
		"nftables": k.NFTables.MinSyncPeriod.Duration,
	} {
		used[name+".minSyncPeriod"] = used[name+".minSyncPeriod"] || period == defaultMinSyncPeriod
	}
	return used
}

// differences returns the paths below path at which two JSON values differ.
func differences(path string, a, b any) []string {
	objectA, okA := a.(map[string]any)
	objectB, okB := b.(map[string]any)
	if !okA && !okB {
		if reflect.DeepEqual(a, b) {
			return nil
		}
		return []string{path}
	}
	var paths []string
	for key := range objectA {
		paths = append(paths, differences(path+"."+key, objectA[key], objectB[key])...)
	}
	for key := range objectB {
		if _, both := objectA[key]; !both {
			paths = append(paths, differences(path+"."+key, nil, objectB[key])...)
		}
	}
	return paths
}

// tree returns a part of the configuration as its file would have it.
func tree(part any) map[string]any {
	var fields map[string]any
	data, err := json.Marshal(part)
	if err == nil {
		err = json.Unmarshal(data, &fields)
	}
	if err != nil {
		panic(err) // there is no value that JSON cannot hold
	}
	return fields
}
