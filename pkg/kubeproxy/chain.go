package kubeproxy

import (
	"regexp"
	"slices"
)

// chains are the names that kube-proxy gives to chains, by table of iptables: those
// of v1.36 in the modes iptables and ipvs. KUBE-FIREWALL, KUBE-KUBELET-CANARY,
// KUBE-IPTABLES-HINT and KUBE-MARK-DROP are not among them: they are the kubelet's.
var chains = map[string][]string{
	"filter": {
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD",
		"KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	},
	"nat": {
		"KUBE-SERVICES", "KUBE-NODEPORTS", postroutingChain, markChain, "KUBE-PROXY-CANARY",
		"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER",
	},
	"mangle": {"KUBE-PROXY-CANARY"},
}

// A packet that markChain has marked is masqueraded by postroutingChain.
const (
	markChain        = "KUBE-MARK-MASQ"
	postroutingChain = "KUBE-POSTROUTING"
)

// serviceChain matches the chains of Services and endpoints, in the table nat: a
// hash of 16 characters follows the kind. XLB is that of v1.23 and older.
var serviceChain = regexp.MustCompile(`^KUBE-(SVC|SVL|FW|EXT|SEP|XLB)-[A-Z2-7]{16}$`)

// ownChain reports whether kube-proxy makes a chain of this name in a table.
func ownChain(table, name string) bool {
	return slices.Contains(chains[table], name) || table == "nat" && serviceChain.MatchString(name)
}

// jumpComments are the comments of the rules by which kube-proxy leads packets from
// the chains of the system to its own.
var jumpComments = []string{
	"kubernetes service portals",
	"kubernetes externally-visible service portals",
	"kubernetes health check service ports",
	"kubernetes health check rules",
	"kubernetes forwarding rules",
	"kubernetes load balancer firewall",
	"kubernetes postrouting rules",
	"kube-proxy firewall rules",
	"kubernetes ipvs access filter",
}
