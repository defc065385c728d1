// Package kube follows the Services, EndpointSlices and the Node of a Kubernetes
// API server, all Nodes when they are asked for, and hands them to a [source.Sink]. It is the
// only package of Beeline that imports client-go's clients.
//
// The list-and-watch loop is client-go's reflector, which streams the initial
// list, reconnects with growing delays and lists anew when the server has
// forgotten where the watch stood. Behind it is no informer's cache of API
// objects but the models themselves, which the sink holds anyway: see store.
package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// listReminder is how often the log says which first lists have not come.
const listReminder = 10 * time.Second

// Options say which API server to follow, and for whom.
type Options struct {
	// Config reaches the API server; Kubeconfig and Master are then not read.
	Config *rest.Config
	// Kubeconfig is the path of a kubeconfig file. Without it the service account
	// of the pod that the process runs in is used.
	Kubeconfig string
	// Master is the URL of the API server in place of the one that the kubeconfig
	// or the pod's environment names. The latter is a Service address, which
	// nothing serves before Beeline does.
	Master string

	// QPS and Burst limit the requests; 0 is client-go's default, a negative QPS no
	// limit.
	QPS   float32
	Burst int
	// ContentType is the encoding of requests, "" is protobuf; AcceptContentTypes
	// what answers may be, "" is ContentType or JSON.
	ContentType, AcceptContentTypes string

	// NodeName is the name of this node's Node object.
	NodeName string
	// ServiceRanges are Service CIDRs beside those of the cluster's ServiceCIDR objects.
	ServiceRanges []netip.Prefix
	// Only is the one Service to follow, with its slices; the zero value is all.
	Only model.Name
	// Allowed is what Services and EndpointSlices may ask for.
	Allowed convert.Allowed
	Sink    source.Sink

	// EventSpread is the time over which the nodes of a cluster send an event about a
	// Service, each after a random part of it; 0 is a minute, a negative one none.
	EventSpread time.Duration
	// EventsWait, unless nil, is told whether events about Services wait to be sent, until Run
	// returns. It must not block.
	EventsWait func(bool)
}

// Source follows an API server. Make one with [New].
type Source struct {
	reflectors []*cache.Reflector
	lists      []list
	sink       source.Sink
	recorder   *recorder
	ranges     *ranges
	cidrs      *cidrFollower
	nodes      *nodeFollower
	local      *store[*corev1.Node, model.LocalNode] // the node's own object
	nodeName   string
	clock      *serverClock
}

// list is a first list that the sink waits for.
type list struct {
	resource string
	// done is closed when it has been handed on, absent when there will be none.
	done, absent <-chan struct{}
}

// New returns a Source for o. It does not contact the API server, which may be
// away at that time.
func New(o Options) (*Source, error) {
	if o.NodeName == "" {
		return nil, errors.New("kubernetes source: no node name: set the name of this node's Node object")
	}
	if o.Sink == nil {
		return nil, errors.New("kubernetes source: no sink")
	}
	c, err := newClients(o)
	if err != nil {
		return nil, fmt.Errorf("kubernetes source: %w", err)
	}
	s := &Source{sink: o.Sink, ranges: newRanges(o.Sink, o.ServiceRanges), clock: c.clock, nodeName: o.NodeName}
	services := newServices(o.Sink, o.Allowed, s.ranges)
	s.recorder = newRecorder(c.events, o.NodeName, o.EventSpread, o.EventsWait)
	s.recorder.uidOf = func(name model.Name) types.UID { return uidOf(services.get(name)) }
	s.cidrs = newCIDRFollower(c.networking, s.ranges)
	s.nodes = newNodeFollower(c.core, o.Sink)
	follow(s, c.core, "services", "services", selectServices(o.Only), services)
	follow(s, c.discovery, "endpointslices", "endpointslices", selectSlices(o.Only), newSlices(o.Sink, o.Allowed.Annotations))
	s.local = newLocalNode(o.Sink)
	follow(s, c.core, "nodes", "node "+o.NodeName, selectNode(o.NodeName), s.local)
	s.lists = append(s.lists, list{resource: "servicecidrs", done: s.cidrs.listed, absent: s.cidrs.absent})
	return s, nil
}

// Record sends an event to the API server, once Run runs. It may be called at any
// time and does not block.
func (s *Source) Record(e event.Event) { s.recorder.record(e) }

// Run follows the API server until ctx is done and then returns nil. While the
// server cannot be reached, what was last seen stays and the reason is logged.
//
// The sink is told [source.Sink.Synced] once all Services, all EndpointSlices, and the
// Node and ServiceCIDRs, should there be any, have been handed over. A call of the sink
// that is under way when ctx is done may outlast Run.
func (s *Source) Run(ctx context.Context) error {
	var sending sync.WaitGroup
	sending.Go(func() { s.recorder.run(ctx) })
	defer sending.Wait()
	go s.cidrs.run(ctx)
	go s.nodes.run(ctx)
	// The reflectors are not waited for: one that backs off notices ctx only when
	// its delay, up to a minute, is over (client-go 0.36).
	for _, r := range s.reflectors {
		go r.RunWithContext(ctx)
	}
	if !s.awaitLists(ctx) {
		return nil
	}
	s.ranges.start()
	s.sink.Synced()
	<-ctx.Done()
	return nil
}

// awaitLists waits for the first lists and says which are not there yet. It returns false
// when ctx ended.
func (s *Source) awaitLists(ctx context.Context) bool {
	var missing []string
	for _, l := range s.lists {
		missing = append(missing, l.resource)
	}
	begin := time.Now()
	klog.InfoS("Waiting for the first lists of the API server", "resources", missing)
	remind := time.NewTicker(listReminder)
	defer remind.Stop()
	for i := 0; i < len(s.lists); {
		select {
		case <-ctx.Done():
			return false
		case <-remind.C:
			klog.InfoS("Still waiting for lists of the API server", "resources", s.missing(), "for", time.Since(begin).Round(time.Second))
		case <-s.lists[i].done:
			i++
		case <-s.lists[i].absent:
			i++
		}
	}
	klog.InfoS("The API server has listed everything", "after", time.Since(begin).Round(time.Millisecond))
	return true
}

// missing returns the resources whose first list has not come.
func (s *Source) missing() (names []string) {
	for _, l := range s.lists {
		select {
		case <-l.done:
		case <-l.absent:
		default:
			names = append(names, l.resource)
		}
	}
	return names
}

// selectServices leaves out at the server what has no cluster IP, and others than only. Services of
// other proxies come by the same watch as those that are served: there are few, and each watch is one
// for each node.
func selectServices(only model.Name) selection {
	selected := []fields.Selector{
		fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone),
		fields.OneTermNotEqualSelector("spec.type", string(corev1.ServiceTypeExternalName)),
	}
	if only != (model.Name{}) {
		selected = append(selected, fields.OneTermEqualSelector(metav1.ObjectNameField, only.Name))
	}
	return selection{only.Namespace, func(l *metav1.ListOptions) { l.FieldSelector = fields.AndSelectors(selected...).String() }}
}

// selectSlices leaves out at the server the slices of headless Services, and of others than only. The
// API server cannot select by the address type.
func selectSlices(only model.Name) selection {
	selected := "!" + corev1.IsHeadlessService
	if only != (model.Name{}) {
		selected += "," + discoveryv1.LabelServiceName + "=" + only.Name
	}
	return selection{only.Namespace, func(l *metav1.ListOptions) { l.LabelSelector = selected }}
}

func selectNode(name string) selection {
	return selection{"", func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}}
}

// selection is what the server selects of a resource: in a namespace, "" is all, and by options.
type selection struct {
	namespace string
	options   func(*metav1.ListOptions)
}

// follow adds a reflector that fills st with what is selected of a resource. name is for messages.
func follow[O object, M any](s *Source, c cache.Getter, resource, name string, selected selection, st *store[O, M]) {
	s.reflectors = append(s.reflectors, newReflector(c, resource, name, selected, st))
	s.lists = append(s.lists, list{resource: name, done: st.listed})
}

// newReflector returns what fills st with what is selected of a resource.
func newReflector[O object, M any](c cache.Getter, resource, name string, selected selection, st *store[O, M]) *cache.Reflector {
	var kind O
	lw := cache.NewFilteredListWatchFromClient(c, resource, selected.namespace, selected.options)
	return cache.NewReflectorWithOptions(lw, kind, st, cache.ReflectorOptions{Name: name})
}

var selectAll = selection{"", func(*metav1.ListOptions) {}}

// clusterService is a Service that is served, or else one of another proxy.
type clusterService struct {
	served  *model.Service
	foreign *foreignService
	uid     types.UID // of one that is served
}

// uidOf returns the UID of a Service that is served, or nothing.
func uidOf(s *clusterService) types.UID {
	if s == nil {
		return ""
	}
	return s.uid
}

func newServices(sink source.Sink, allowed convert.Allowed, r *ranges) *store[*corev1.Service, clusterService] {
	return newStore(func(o *corev1.Service) *clusterService {
		if convert.Foreign(o) {
			return &clusterService{foreign: &foreignService{nameOf(o), convert.ClusterIPs(o)}}
		}
		if served := convert.Service(o, allowed); served != nil {
			return &clusterService{served: served, uid: o.UID}
		}
		return nil
	}, func(put []*clusterService, gone []model.Name) {
		u := source.Update{DeleteServices: slices.Clone(gone)}
		own := gone // what is no other proxy's any more
		var foreign []*foreignService
		for _, s := range put {
			if s.foreign != nil { // and may have been served
				foreign = append(foreign, s.foreign)
				u.DeleteServices = append(u.DeleteServices, s.foreign.name)
				continue
			}
			u.PutServices = append(u.PutServices, s.served)
			own = append(own, s.served.Name)
		}
		// In this order no packet to another proxy is dropped meanwhile.
		r.put(foreign)
		sink.Apply(u)
		r.remove(own)
	})
}

func newSlices(sink source.Sink, allowed convert.Annotations) *store[*discoveryv1.EndpointSlice, model.Slice] {
	var seen convert.Interner
	st := newStore(func(o *discoveryv1.EndpointSlice) *model.Slice {
		s := convert.Slice(o, allowed)
		seen.Slice(s)
		return s
	}, func(put []*model.Slice, gone []model.Name) {
		sink.Apply(source.Update{PutSlices: put, DeleteSlices: gone})
	})
	st.same = sameSlice
	return st
}

// sameSlice leaves out what triggered the slices: the controller may note a new time
// and change nothing else. It takes a tenth of the time of reflection, which counts for
// slices come often and are long.
func sameSlice(a, b *model.Slice) bool {
	return a.Name == b.Name && a.Service == b.Service && a.Family == b.Family &&
		(a.Weight == nil) == (b.Weight == nil) && (a.Weight == nil || *a.Weight == *b.Weight) &&
		slices.Equal(a.Ports, b.Ports) && slices.Equal(a.Faults, b.Faults) &&
		slices.EqualFunc(a.Endpoints, b.Endpoints, sameEndpoint)
}

func sameEndpoint(a, b model.Endpoint) bool {
	return a.Addr == b.Addr && a.NodeName == b.NodeName && a.Zone == b.Zone &&
		a.Ready == b.Ready && a.Serving == b.Serving && a.Terminating == b.Terminating &&
		slices.Equal(a.NodeHints, b.NodeHints) && slices.Equal(a.ZoneHints, b.ZoneHints)
}

// NodeMissing reports whether the API server has listed the Nodes, and none has the name of this one.
func (s *Source) NodeMissing() bool {
	select {
	case <-s.local.listed:
		return s.local.get(model.Name{Name: s.nodeName}) == nil
	default:
		return false
	}
}

// newLocalNode returns the store of the node's own object. Of a family of which the object has no address, the former
// ones stay, and so do its ranges of pods: a kubelet that registers its node again writes the name
// alone until the cloud's controller adds the IPs, and NodePorts are served meanwhile. kube-proxy does not follow
// the node's IPs at all.
func newLocalNode(sink source.Sink) *store[*corev1.Node, model.LocalNode] {
	var former model.LocalNode
	return newStore(convert.LocalNode, func(put []*model.LocalNode, gone []model.Name) {
		if len(put) == 0 {
			sink.Apply(source.Update{LocalNodeGone: len(gone) > 0})
		}
		for _, n := range put {
			node := *n
			node.Addrs = model.PreferAddrs(n.Addrs, former.Addrs)
			node.PodRanges = model.PreferRanges(n.PodRanges, former.PodRanges)
			former = node
			sink.Apply(source.Update{LocalNode: &node})
		}
	})
}
