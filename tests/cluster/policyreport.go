package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// policyHeading begins the section of NetworkPolicies in RESULTS.md.
const policyHeading = "\n## NetworkPolicy\n"

// policyVariants are the kinds of clusters that the section compares: what enforces policies, and
// the names of the kinds with Beeline and with kube-proxy.
var policyVariants = [][3]string{
	{"kube-router v2.6.3-k3s1", "beeline-kube-router", "kube-proxy-nftables-kube-router"},
	{"kube-network-policies v1.1.1", "beeline-kube-network-policies", "kube-proxy-nftables-kube-network-policies"},
}

// policyColumn is one path of one proxy.
type policyColumn struct {
	heading string
	policyResult
}

// policySection returns the section, empty when there are no results. Where Beeline and
// kube-proxy differ, it needs a reason.
func policySection(reports string, why reasons) ([]byte, error) {
	var b bytes.Buffer
	for _, v := range policyVariants {
		columns, err := readPolicyColumns(reports, v[1], v[2])
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if b.Len() == 0 {
			b.WriteString(policyIntroduction)
		}
		if err := writePolicyVariant(&b, v[0], columns, why); err != nil {
			return nil, fmt.Errorf("%s: %w", v[0], err)
		}
	}
	return b.Bytes(), nil
}

const policyIntroduction = policyHeading + `
Made by ` + "`make cluster-policy NODES=2`" + ` with ` + "`FABRIC=kube-router`" + ` or ` + "`POLICY=kube-network-policies`" + `, once more with
` + "`PROXY=kube-proxy`" + `: behind Beeline with socket-level load balancing, behind Beeline where it balances the
packets of pods (` + "`podDevices`" + `), and behind kube-proxy in mode nftables. The server is in a pod of the
first node. Each flow is tried by TCP and UDP, IPv4 and IPv6, without a policy, with each, and without
again. "yes": all four are allowed, "no": all four are denied, by all proxies; other cells say what is
different. The two egress policies are for the pod that is the client, all others for the server.
`

func readPolicyColumns(reports, beeline, kubeProxy string) ([]policyColumn, error) {
	var columns []policyColumn
	for _, from := range [][2]string{{beeline, "Beeline"}, {kubeProxy, "kube-proxy"}} {
		b, err := os.ReadFile(policyFile(reports, from[0]))
		if err != nil {
			return nil, err
		}
		var results []policyResult
		if err := json.Unmarshal(b, &results); err != nil {
			return nil, fmt.Errorf("results of %s: %w", from[0], err)
		}
		for _, r := range results {
			heading := from[1]
			if len(results) > 1 {
				heading += ", " + r.Path
			}
			columns = append(columns, policyColumn{heading, r})
		}
	}
	return columns, nil
}

// writePolicyVariant writes what one enforcer did.
func writePolicyVariant(b *bytes.Buffer, enforcer string, columns []policyColumn, why reasons) error {
	fmt.Fprintf(b, "\n### %s\n\n", enforcer)
	var names []string
	for _, rule := range policyRules(2) {
		names = append(names, rule.name)
	}
	row(b, "flow", names...)
	row(b, "---", slices.Repeat([]string{"---"}, len(names))...)
	var errs []error
	different := make(map[string]string) // reason by flow
	for _, f := range policyFlows {
		var cells []string
		for _, name := range names {
			cell, same := comparePolicy(columns, name, f.String())
			cells = append(cells, cell)
			if !same {
				different[f.String()] = why.of("NetworkPolicy: " + f.String())
			}
		}
		row(b, f.String(), cells...)
	}
	b.WriteString("\nWhose address the server saw:\n\n")
	headings := policyHeadings(columns)
	row(b, "flow", headings...)
	row(b, "---", slices.Repeat([]string{"---"}, len(headings))...)
	for _, f := range policyFlows {
		var cells []string
		for _, c := range columns {
			cells = append(cells, c.Readings[noPolicy].sourcesOf(f.String()))
		}
		row(b, f.String(), cells...)
		if len(slices.Compact(slices.Clone(cells))) > 1 {
			different[f.String()] = why.of("NetworkPolicy: " + f.String())
		}
	}
	b.WriteString("\nWhat becomes of connections and UDP sockets when a policy comes that denies them:\n\n")
	row(b, "client", headings...)
	row(b, "---", slices.Repeat([]string{"---"}, len(headings))...)
	for _, client := range slices.Sorted(maps.Keys(columns[0].Open)) {
		var cells []string
		for _, c := range columns {
			cells = append(cells, c.Open[client])
		}
		row(b, client, cells...)
		if len(slices.Compact(slices.Clone(cells))) > 1 {
			name := "open connections, " + client
			different[name] = why.of("NetworkPolicy: " + name)
		}
	}
	if len(different) > 0 {
		b.WriteString("\nWhat differs, and why:\n\n")
		row(b, "flow", "why")
		row(b, "---", "---")
	}
	for _, name := range slices.Sorted(maps.Keys(different)) {
		if different[name] == "" {
			errs = append(errs, fmt.Errorf("tests/cluster/reasons.txt does not say why %q differs", "NetworkPolicy: "+name))
		}
		row(b, name, different[name])
	}
	return errors.Join(errs...)
}

func policyHeadings(columns []policyColumn) []string {
	var all []string
	for _, c := range columns {
		all = append(all, c.heading)
	}
	return all
}

// comparePolicy returns the cell of a flow under a policy, and whether all columns agree.
func comparePolicy(columns []policyColumn, policy, flow string) (cell string, same bool) {
	var told []string
	outcomes := make(map[string]bool)
	for _, c := range columns {
		outcome := c.Readings[policy].outcomeOf(flow)
		outcomes[outcome] = true
		told = append(told, c.heading+": "+outcome)
	}
	if len(outcomes) > 1 {
		return strings.Join(told, "; "), false
	}
	return columns[0].Readings[policy].outcomeOf(flow), true
}

// outcomeOf says whether a flow is allowed; where that depends on protocol or family, which are.
func (reading policyReading) outcomeOf(flow string) string {
	answers := reading[flow]
	var allowed []string
	for _, with := range slices.Sorted(maps.Keys(answers)) {
		if answers[with].Allowed {
			allowed = append(allowed, with)
		}
	}
	switch len(allowed) {
	case 0:
		if len(answers) == 0 {
			return outcomeNone
		}
		return "no"
	case len(answers):
		return "yes"
	default:
		return strings.Join(allowed, ", ")
	}
}

// sourcesOf says whose addresses the server saw of a flow.
func (reading policyReading) sourcesOf(flow string) string {
	var all []string
	for _, a := range reading[flow] {
		if a.Allowed {
			all = append(all, string(a.Source))
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}
