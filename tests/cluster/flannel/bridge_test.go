package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// own is the plugin's configuration as the manifest has it.
const own = `{"cniVersion": "1.0.0", "name": "cbr0", "type": "flannel",
	"delegate": {"hairpinMode": true, "isDefaultGateway": true}}`

// subnets is what flanneld v0.28.10 writes on a dual-stack node.
const subnets = `FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_IPV6_NETWORK=fd98:244::/48
FLANNEL_IPV6_SUBNET=fd98:244:0:1::1/64
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
`

func TestBridgeConfig(t *testing.T) {
	const ipam4 = `"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "10.244.0.0/16"}]}`
	for _, c := range []struct{ name, own, subnets, want string }{
		{"dual-stack", own, subnets, `{
			"cniVersion": "1.0.0", "name": "cbr0", "type": "bridge", "mtu": 1450,
			"isGateway": true, "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
			"ipam": {"type": "host-local",
				"ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd98:244:0:1::/64"}]],
				"routes": [{"dst": "10.244.0.0/16"}, {"dst": "fd98:244::/48"}]}}`},
		{"masquerading left to the plugin", `{"cniVersion": "1.0.0", "name": "x"}`,
			"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n", `{
			"cniVersion": "1.0.0", "name": "x", "type": "bridge", "mtu": 1500,
			"isGateway": true, "ipMasq": true, ` + ipam4 + `}`},
		{"delegate first, the runtime's part passed on", `{"cniVersion": "1.0.0", "name": "x",
				"delegate": {"mtu": 1300}, "runtimeConfig": {"bandwidth": {}}, "prevResult": {"ips": []}}`,
			"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n", `{
			"cniVersion": "1.0.0", "name": "x", "type": "bridge", "mtu": 1300,
			"runtimeConfig": {"bandwidth": {}}, "prevResult": {"ips": []},
			"isGateway": true, "ipMasq": false, ` + ipam4 + `}`},
	} {
		got, err := bridgeConfig([]byte(c.own), c.subnets)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !reflect.DeepEqual(decode(t, string(got)), decode(t, c.want)) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestBridgeConfigErrors(t *testing.T) {
	for _, c := range []struct{ own, subnets, want string }{
		{"{", subnets, "read the configuration"},
		{own, "", "MTU"},
		{own, "FLANNEL_MTU=1500\n", "no subnet"},
		{own, "FLANNEL_MTU=1500\nFLANNEL_SUBNET=10.244.1.1\n", "10.244.1.1"},
	} {
		if _, err := bridgeConfig([]byte(c.own), c.subnets); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %q: error %v, want one about %q", c.own, c.subnets, err, c.want)
		}
	}
}

func decode(t *testing.T, text string) (value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return value
}
