package kube

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// cidrAbsent is how long to wait before a server that has or shows no ServiceCIDRs is asked
// again.
const cidrAbsent = 10 * time.Minute

// cidrRetry is how long to wait before a list or watch of ServiceCIDRs that ended is begun
// again. Like that of client-go's reflectors it starts afresh when the server was well for
// two minutes.
var cidrRetry = wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 38, Cap: 30 * time.Second}

const cidrRetryReset = 2 * time.Minute

// serviceCIDR is a ServiceCIDR object.
type serviceCIDR struct {
	name     model.Name
	prefixes []netip.Prefix
}

// foreignService is a Service that is left to another proxy.
type foreignService struct {
	name       model.Name
	clusterIPs []netip.Addr
}

// ranges hands a sink the Service CIDRs, those that the configuration gives and those of the
// cluster, and the addresses in them that Services of other proxies have.
type ranges struct {
	sink  source.Sink
	given []netip.Prefix

	mu        sync.Mutex
	ready     bool
	cidrs     map[model.Name]*serviceCIDR
	foreign   map[model.Name][]netip.Addr // cluster IPs of Services of other proxies
	delivered source.Update
}

func newRanges(sink source.Sink, given []netip.Prefix) *ranges {
	return &ranges{
		sink:    sink,
		given:   given,
		cidrs:   make(map[model.Name]*serviceCIDR),
		foreign: make(map[model.Name][]netip.Addr),
	}
}

// start lets the ranges be delivered: both kinds of object have been listed.
func (r *ranges) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = true
	r.deliver()
}

// deliver hands over what differs from what was delivered last. The caller has the lock.
func (r *ranges) deliver() {
	if !r.ready {
		return
	}
	want := slices.Clone(r.given)
	for _, c := range r.cidrs {
		want = append(want, c.prefixes...)
	}
	u := source.Update{ServiceCIDRs: convert.SortedCIDRs(want), ForeignIPs: convert.ForeignIPs(r.foreign)}
	if slices.Equal(u.ServiceCIDRs, r.delivered.ServiceCIDRs) && slices.Equal(u.ForeignIPs, r.delivered.ForeignIPs) {
		return
	}
	r.delivered = u
	r.sink.Apply(u)
}

func newServiceCIDRs(r *ranges) *store[*networkingv1.ServiceCIDR, serviceCIDR] {
	return newStore(func(o *networkingv1.ServiceCIDR) *serviceCIDR {
		return &serviceCIDR{nameOf(o), convert.ServiceCIDR(o)}
	}, func(put []*serviceCIDR, gone []model.Name) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range put {
			r.cidrs[c.name] = c
		}
		for _, name := range gone {
			delete(r.cidrs, name)
		}
		r.deliver()
	})
}

// put leaves the addresses of Services to other proxies.
func (r *ranges) put(foreign []*foreignService) {
	if len(foreign) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range foreign {
		r.foreign[f.name] = f.clusterIPs
	}
	r.deliver()
}

// remove takes back the addresses of Services that are no other proxy's any more, or never were.
func (r *ranges) remove(names []model.Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.foreign)
	for _, name := range names {
		delete(r.foreign, name)
	}
	if len(r.foreign) < before {
		r.deliver()
	}
}

// cidrFollower follows ServiceCIDRs where the API has them, which is from Kubernetes
// 1.33 on, and shows them to this account.
type cidrFollower struct {
	reflector *cache.Reflector
	// listed is closed when the first list has been handed on, absent when the server
	// has said that there will be none.
	listed <-chan struct{}
	absent chan struct{}
}

func newCIDRFollower(client rest.Interface, r *ranges) *cidrFollower {
	st := newServiceCIDRs(r)
	return &cidrFollower{
		reflector: newReflector(client, "servicecidrs", "servicecidrs", selectAll, st),
		listed:    st.listed,
		absent:    make(chan struct{}),
	}
}

// run follows until ctx ends. A reflector by itself would take a resource that is not
// there for an outage, and ask all the time.
func (f *cidrFollower) run(ctx context.Context) {
	retry := cidrRetry.DelayWithReset(clock.RealClock{}, cidrRetryReset)
	absent := false
	for {
		err := f.reflector.ListAndWatchWithContext(ctx)
		delay := retry()
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			delay = cidrAbsent
			if !absent {
				absent = true
				klog.InfoS("ServiceCIDRs could not be listed: unallocated cluster IPs are dropped only in the ranges of the configuration", "err", err)
				close(f.absent)
			}
		case err != nil:
			cache.DefaultWatchErrorHandler(ctx, f.reflector, err)
		}
		if !pause.For(ctx, delay) {
			return
		}
	}
}
