package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/programs"
)

const kubeNetworkPoliciesImage = "registry.k8s.io/networking/kube-network-policies:local"

// kubeNetworkPolicies enforces NetworkPolicy beside any network: netfilter asks it about the first
// packet of each connection.
var kubeNetworkPolicies = addon{
	manifest:  "kube-network-policies.yaml",
	values:    map[string]any{"Image": kubeNetworkPoliciesImage, "Queue": 98},
	namespace: "kube-system",
	daemonSet: "kube-network-policies",
	programs:  programs.KubeNetworkPolicies,
	image: func(_ context.Context, cache, rootfs string, f programFolders) (string, error) {
		return archiveImages(cache, "kube-network-policies", rootfs, []recipe{{
			tags:       []string{kubeNetworkPoliciesImage},
			debian:     true,
			files:      map[string]string{"bin/netpol": filepath.Join(f.Policy, "netpol")},
			entrypoint: []string{"/bin/netpol"},
		}})
	},
}

// hasQueueExpression reports whether the kernel's nftables can ask a program (CONFIG_NFT_QUEUE).
func hasQueueExpression() (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, err
	}
	table := c.AddTable(&nftables.Table{Name: "beeline-probe", Family: nftables.TableFamilyINet})
	chain := c.AddChain(&nftables.Chain{Name: "probe", Table: table})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Queue{Num: 1}}})
	c.DelTable(table)
	err = c.Flush()
	if err == nil || errors.Is(err, unix.ENOENT) {
		return err == nil, nil
	}
	return false, fmt.Errorf("ask for nft_queue: %w", err)
}
