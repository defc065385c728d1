package config

import "github.com/spf13/pflag"

// addSection adds the flags that go to the section of kube-proxy's mode. Those named
// after iptables and ipvs are kube-proxy's own.
func (f *flagSet) addSection(c *Config) {
	section := c.section()
	f.Bool("masquerade-all", *section.masqueradeAll,
		"give packets to backends on this node a source address of the node, too, except under externalTrafficPolicy Local")
	for _, prefix := range []string{"", "iptables-", "ipvs-"} {
		f.Duration(prefix+"sync-period", section.syncPeriod.Duration,
			"changes that wait for twice this time make the agent unhealthy")
		f.Duration(prefix+"min-sync-period", section.minSyncPeriod.Duration,
			"shortest time between two syncs")
		if prefix != "" {
			_ = f.MarkHidden(prefix + "sync-period")
			_ = f.MarkHidden(prefix + "min-sync-period")
		}
	}
}

// applySection sets those of the flags that were given in the section of c's mode. As
// in kube-proxy, flags named after ipvs count in that mode, those named after iptables
// in all others.
func applySection(given *pflag.FlagSet, c *Config) {
	section, prefix := c.section(), "iptables-"
	if section.name == "ipvs" {
		prefix = "ipvs-"
	}
	if given.Changed("masquerade-all") {
		*section.masqueradeAll, _ = given.GetBool("masquerade-all")
		c.origin.flags["KubeProxyConfiguration."+section.masquerade+".masqueradeAll"] = "masquerade-all"
	}
	for _, name := range []string{prefix + "sync-period", "sync-period"} {
		if given.Changed(name) {
			section.syncPeriod.Duration, _ = given.GetDuration(name)
			c.origin.flags["KubeProxyConfiguration."+section.name+".syncPeriod"] = name
		}
	}
	for _, name := range []string{prefix + "min-sync-period", "min-sync-period"} {
		if given.Changed(name) {
			section.minSyncPeriod.Duration, _ = given.GetDuration(name)
			c.origin.flags["KubeProxyConfiguration."+section.name+".minSyncPeriod"] = name
		}
	}
}
