package main

import (
	"context"
	"maps"
	"strings"

	"github.com/beeline-lb/beeline/tests/programs"
)

// addon is a program of other projects in a DaemonSet. One that connects the pods does so in
// place of the reference plugins: neither the nodes nor the router are given routes to pods, and
// no rules that masquerade them.
type addon struct {
	// manifest is one of ours, rendered with values.
	manifest string
	values   map[string]any
	// namespace and daemonSet are those of the pods to wait for.
	namespace, daemonSet string
	// programs are built for it, to the folder [programFolders.Addon] or [programFolders.Policy].
	programs interface {
		Build(context.Context) (dir string, err error)
		Version(context.Context) (string, error)
	}
	// definitions is the folder of its checkout with custom resource definitions.
	definitions string
	// assignsAnyNode is set when a pod's address may be of any node's range: the control
	// plane sends to all pods by the first node.
	assignsAnyNode bool
	// largest6 is how large a datagram by IPv6 may be so that the first one to another node's pod
	// arrives, whatever the proxy, where pods are told a larger MTU than the overlay has; 0: any.
	largest6 int
	// image returns an archive with its image.
	image func(ctx context.Context, cache, rootfs string, f programFolders) (string, error)
}

// addons are the network add-ons, by fabric.
var addons = map[string]addon{
	fabricFlannel:        flannelAddon("vxlan"),
	fabricFlannelHostGW:  flannelAddon("host-gw"),
	fabricKubeRouter:     kubeRouterAddon,
	fabricCilium:         ciliumAddon,
	fabricKindnet:        kindnetAddon,
	fabricCalico:         calicoAddon("Always", "Disabled"),
	fabricCalicoSubnet:   calicoAddon("CrossSubnet", "Disabled"),
	fabricCalicoNftables: calicoAddon("Always", "Enabled"),
}

// data is what the manifest is rendered with.
func (a addon) data() map[string]any {
	data := map[string]any{"PodNetworks": strings.Split(clusterCIDRs, ",")}
	maps.Copy(data, a.values)
	return data
}

// version returns the project and version of programs that are built from a checkout;
// those of others are part of this repository.
func (a addon) version(ctx context.Context) (string, error) {
	checkout, ok := a.programs.(programs.Checkout)
	if !ok {
		return "", nil
	}
	return checkout.Version(ctx)
}

// enforcers are what enforces NetworkPolicy beside a network, by settings.Policy.
var enforcers = map[string]addon{policyKubeNetworkPolicies: kubeNetworkPolicies}

func hasAddon(fabric string) bool {
	_, ok := addons[fabric]
	return ok
}

// installAddons installs the fabric's add-on and what enforces NetworkPolicy, where there are
// such, and waits until they run on all nodes.
func (c *cluster) installAddons(ctx context.Context) error {
	if a, ok := addons[c.Fabric]; ok {
		if err := c.installAddon(ctx, a, a.data()); err != nil {
			return err
		}
		if c.AddonVersion != "" {
			c.say("%s connects the pods, built from %s", c.Fabric, c.AddonVersion)
		}
	}
	a, ok := enforcers[c.Policy]
	if !ok {
		return nil
	}
	data := a.data()
	var err error
	if data["QueueExpression"], err = hasQueueExpression(); err != nil {
		return err
	}
	return c.installAddon(ctx, a, data)
}

// installAddon installs an add-on and waits until it runs on all nodes.
func (c *cluster) installAddon(ctx context.Context, a addon, data map[string]any) error {
	if err := c.applyDefinitions(ctx, a); err != nil {
		return err
	}
	if err := c.applyWith(ctx, a.manifest, data); err != nil {
		return err
	}
	return c.rolledOutIn(ctx, a.namespace, "daemonset/"+a.daemonSet)
}

// applyDefinitions applies the custom resource definitions that the checkout of an add-on
// has, and waits until the API server serves them.
func (c *cluster) applyDefinitions(ctx context.Context, a addon) error {
	checkout, ok := a.programs.(programs.Checkout)
	if !ok || a.definitions == "" {
		return nil
	}
	folder, err := checkout.File(a.definitions)
	if err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, "apply", "--server-side", "--filename="+folder); err != nil {
		return err
	}
	_, err = c.kubectl(ctx, "wait", "--for=condition=Established", "--timeout="+bootTimeout.String(), "--filename="+folder)
	return err
}
