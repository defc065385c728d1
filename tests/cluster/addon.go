package main

import (
	"context"
	"maps"
	"strings"

	"github.com/beeline-lb/beeline/tests/programs"
)

// addon connects the pods in place of the reference plugins: neither the nodes nor the
// router are given routes to pods, and no rules that masquerade them.
type addon struct {
	// manifest is one of ours, rendered with values.
	manifest string
	values   map[string]any
	// namespace and daemonSet are those of the pods to wait for.
	namespace, daemonSet string
	// programs are built for it, to the folder [programFolders.Addon].
	programs interface {
		Build(context.Context) (dir string, err error)
	}
	// image returns an archive with its image.
	image func(ctx context.Context, cache, rootfs string, f programFolders) (string, error)
}

// addons are the network add-ons, by fabric.
var addons = map[string]addon{
	fabricFlannel:       flannelAddon("vxlan"),
	fabricFlannelHostGW: flannelAddon("host-gw"),
	fabricKubeRouter:    kubeRouterAddon,
	fabricKindnet:       kindnetAddon,
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

func hasAddon(fabric string) bool {
	_, ok := addons[fabric]
	return ok
}

// installAddon installs the fabric's add-on, where it has one, and waits until it runs
// on all nodes.
func (c *cluster) installAddon(ctx context.Context) error {
	a, ok := addons[c.Fabric]
	if !ok {
		return nil
	}
	if err := c.applyWith(ctx, a.manifest, a.data()); err != nil {
		return err
	}
	if err := c.rolledOutIn(ctx, a.namespace, "daemonset/"+a.daemonSet); err != nil {
		return err
	}
	if c.AddonVersion != "" {
		c.say("%s connects the pods, built from %s", c.Fabric, c.AddonVersion)
	}
	return nil
}
