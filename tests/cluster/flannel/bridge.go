package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
)

// subnetFile is where flanneld writes what it has chosen for the node, as lines of
// NAME=value.
const subnetFile = "/run/flannel/subnet.env"

// config is what is read of the plugin's configuration.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	// Delegate are settings of the plugin bridge that take precedence.
	Delegate      map[string]any  `json:"delegate"`
	RuntimeConfig map[string]any  `json:"runtimeConfig,omitempty"`
	PrevResult    json.RawMessage `json:"prevResult,omitempty"`
}

// bridgeConfig returns the configuration of the plugin bridge: addresses of the node's
// subnets, routes to the networks of all nodes, the overlay's MTU, and masquerading
// when flanneld does none.
func bridgeConfig(input []byte, subnets string) ([]byte, error) {
	var own config
	if err := json.Unmarshal(input, &own); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	values := parseSubnets(subnets)
	mtu, err := strconv.Atoi(values["FLANNEL_MTU"])
	if err != nil {
		return nil, fmt.Errorf("%s: MTU: %w", subnetFile, err)
	}
	ipam, err := hostLocal(values)
	if err != nil {
		return nil, err
	}
	bridge := map[string]any{
		"type":      "bridge",
		"isGateway": true,
		"ipMasq":    values["FLANNEL_IPMASQ"] != "true",
		"mtu":       mtu,
	}
	maps.Copy(bridge, own.Delegate)
	bridge["cniVersion"], bridge["name"], bridge["ipam"] = own.CNIVersion, own.Name, ipam
	if own.RuntimeConfig != nil {
		bridge["runtimeConfig"] = own.RuntimeConfig
	}
	if own.PrevResult != nil {
		bridge["prevResult"] = own.PrevResult
	}
	return json.Marshal(bridge)
}

// hostLocal returns the configuration of address management, a range and routes of
// each IP family that the subnet file has.
func hostLocal(values map[string]string) (map[string]any, error) {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, family := range []string{"FLANNEL_", "FLANNEL_IPV6_"} {
		if values[family+"SUBNET"] == "" {
			continue
		}
		// The file has the node's own address in it.
		subnet, err := netip.ParsePrefix(values[family+"SUBNET"])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", subnetFile, err)
		}
		ranges = append(ranges, []map[string]string{{"subnet": subnet.Masked().String()}})
		for network := range strings.SplitSeq(values[family+"NETWORK"], ",") {
			routes = append(routes, map[string]string{"dst": network})
		}
	}
	if len(ranges) == 0 {
		return nil, fmt.Errorf("%s has no subnet", subnetFile)
	}
	return map[string]any{"type": "host-local", "ranges": ranges, "routes": routes}, nil
}

func parseSubnets(file string) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(file) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = value
		}
	}
	return values
}
