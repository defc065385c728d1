package main

import (
	"context"
	"fmt"
	"strings"
)

const (
	balanceRequests = 300
	// fairShare is the least that each of three servers must get of them.
	fairShare = balanceRequests / 5
)

// balance shows that requests to the ClusterIP reach all web servers, directly.
func (p *play) balance(ctx context.Context) error {
	p.scene("One address, three servers")
	if err := p.oneRequest(ctx); err != nil {
		return err
	}
	fmt.Fprintln(p.out)
	url := fmt.Sprintf("%s[1-%d]", p.web.url(), balanceRequests)
	p.prompt(clients[0].name, fmt.Sprintf("curl --silent '%s'", url))
	out, err := p.curl(ctx, clients[0].name, url)
	if err != nil {
		return err
	}
	counts := answers(out)
	p.bars(names(webServers), counts)
	total, least := 0, balanceRequests
	for _, pod := range webServers {
		total += counts[pod.name]
		least = min(least, counts[pod.name])
	}
	p.claim(total == balanceRequests, "%d of %d requests answered, each on a connection of its own", total, balanceRequests)
	p.claim(least >= fairShare, "every server has its share")
	return p.beeline(ctx, "service", "show", "default/web")
}

// oneRequest shows the two ends of a connection: the client talks to the Service,
// the server to the client.
func (p *play) oneRequest(ctx context.Context) error {
	from := clients[0]
	p.prompt(from.name, fmt.Sprintf(`curl --silent --write-out 'from %%{remote_ip}\n' %s`, p.web.url()))
	out, err := p.curl(ctx, from.name, "--write-out", `from %{remote_ip}\n`, p.web.url())
	if err != nil {
		return err
	}
	p.text(out)
	p.claim(strings.Contains(out, "answers "+from.addr+"\n"), "the server sees the client's own address: nothing is translated in between")
	p.claim(strings.Contains(out, "from "+p.web.clusterIP+"\n"), "the client sees the Service's address")
	return nil
}

// answers counts the servers that answered.
func answers(out string) map[string]int {
	counts := make(map[string]int)
	for line := range strings.Lines(out) {
		if name, _, answered := strings.Cut(line, " answers "); answered {
			counts[name]++
		}
	}
	return counts
}
