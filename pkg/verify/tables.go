package verify

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/setup"
	"github.com/beeline-lb/beeline/pkg/source/host"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// lookAtTables does what an agent does at its start, over maps that are not written: it takes up
// ids and slots from the kernel, and makes a sync with all that the source tells. A restart
// without changes writes nothing, so whatever would be written is a difference.
func (c *Checker) lookAtTables(ctx context.Context) ([]Finding, error) {
	have, err := servicemap.New(c.maps).Snapshot()
	if err != nil {
		return nil, err
	}
	addrs, err := host.Addresses()
	if err != nil {
		return nil, err
	}
	rec := newRecorder(c.maps, have)
	restored := tables.Restore(rec, have)
	restored.SetBounds(c.settings.Bounds)
	d := &differences{recorder: rec}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o := setup.Reconcile(c.settings)
	o.MinSyncPeriod = 0
	o.FollowNodes = c.source.FollowNodes
	o.Failed = func(service model.Name, f *reconcile.Failure) {
		if f != nil {
			d.failed(service, f.Error)
		}
	}
	o.PodRanges = func(ranges []netip.Prefix) { c.podsOfNodes = append([]netip.Prefix{}, ranges...) }
	o.Complete = func(context.Context) error { return nil }
	o.Synced = func(reconcile.Sync) { cancel() }
	r := reconcile.New(restored, rec, o)
	r.SetLocalAddresses(addrs)
	r.Apply(c.state.All())
	r.Synced()
	if err := r.Run(ctx); err != nil {
		return nil, err
	}
	return append(d.all(), c.rejected()...), nil
}

// rejected are the manifests that are wrong.
func (c *Checker) rejected() (list []Finding) {
	if c.source.Errors == nil {
		return nil
	}
	for _, err := range c.source.Errors() {
		list = append(list, Finding{Part: Tables, Kind: "manifest", What: fmt.Sprintf("manifest rejected: %v", err)})
	}
	return list
}

// lookAtDerived compares what follows from entries of the tables with these.
func (c *Checker) lookAtDerived() (list []Finding, err error) {
	var errs []error
	for faults, err := range servicemap.New(c.maps).CheckDerived() {
		for _, f := range faults {
			list = append(list, Finding{Part: Tables, Kind: f.Kind, What: f.Text, any: true})
		}
		errs = append(errs, err)
	}
	return list, errors.Join(errs...)
}
