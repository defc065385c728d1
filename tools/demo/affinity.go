package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// stickyRequests is how many each client makes in a row: so many that without
// affinity they would reach all servers.
const stickyRequests = 15

// affinity shows that a client stays with its server, however it gets there.
func (p *play) affinity(ctx context.Context) error {
	p.scene("A client that stays with its server")
	p.say("Service sticky has sessionAffinity: ClientIP. A client is a pod, or the node.")
	fmt.Fprintln(p.out)
	nodePort := fmt.Sprintf(":%d/", p.sticky.nodePort)
	visits := []struct{ from, what, url string }{
		{clients[0].name, "ClusterIP", p.sticky.url()},
		{clients[1].name, "ClusterIP", p.sticky.url()},
		{clients[2].name, "ClusterIP", p.sticky.url()},
		{node, "ClusterIP", p.sticky.url()},
		{node, "NodePort", "http://127.0.0.1" + nodePort},
		{node, "NodePort", "http://" + nodeAddr + nodePort},
	}
	servers := make(map[string][]string) // that answered a client
	answered := 0
	fmt.Fprintf(p.out, "     %-9s %-10s %-27s %s\n", "CLIENT", "KIND", "URL", "ANSWERED BY")
	for _, v := range visits {
		out, err := p.curl(ctx, v.from, fmt.Sprintf("%s[1-%d]", v.url, stickyRequests))
		if err != nil {
			return err
		}
		var by []string
		for _, pod := range webServers {
			if n := answers(out)[pod.name]; n > 0 {
				answered += n
				by = append(by, fmt.Sprintf("%s (%d)", pod.name, n))
				servers[v.from] = append(servers[v.from], pod.name)
			}
		}
		fmt.Fprintf(p.out, "     %-9s %-10s %-27s %s\n", v.from, v.what, v.url, strings.Join(by, ", "))
	}
	p.claim(answered == stickyRequests*len(visits), "%d of %d requests answered", answered, stickyRequests*len(visits))
	p.claim(eachHasOne(servers), "each client has one server; for the node it is the same one over all three addresses")
	return p.beeline(ctx, "affinity", "list")
}

// eachHasOne reports whether each list has one name, once or more.
func eachHasOne(lists map[string][]string) bool {
	for _, list := range lists {
		if len(slices.Compact(list)) != 1 {
			return false
		}
	}
	return true
}
