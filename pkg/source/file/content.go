package file

import (
	"crypto/sha256"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// content are the objects of a file: valid by itself, with the API's defaults
// filled in. It is not changed after it was decoded.
type content struct {
	digest  // of the text
	objects []*object
}

// digest tells texts apart.
type digest [sha256.Size]byte

func digestOf(text []byte) digest { return sha256.Sum256(text) }

// id names an object of a kind.
type id struct {
	kind string
	model.Name
}

func (i id) String() string {
	if i.Namespace == "" {
		return i.kind + " " + i.Name.Name
	}
	return fmt.Sprintf("%s %s", i.kind, i.Name)
}

// object is one Service, EndpointSlice or Node of a file.
type object struct {
	id       id
	document int         // counted from 1
	root     *field.Path // nil is the document itself, else an item of a list

	service *declared    // nil for other kinds
	slice   *model.Slice // nil for other kinds and for a slice to be ignored
	node    *model.Node  // nil for other kinds
}

// declared is a Service of a file, without what it is assigned.
type declared struct {
	model    *model.Service
	served   bool           // it has cluster IPs and is not left to another proxy
	foreign  bool           // it is left to another proxy
	families []model.Family // to have a cluster IP of, the primary one first
	unmet    *yamldoc.Fault // why the ranges cannot give it those; nil is that they can
	listed   bool           // its cluster IPs are in spec.clusterIPs
	allocate bool           // ports are to have a node port
	// healthCheck says that it is to have a healthCheckNodePort, and does not choose it.
	healthCheck bool
	ingress     []int // where the model's LoadBalancerIPs are in the status
}

// The kinds of objects that a file may hold.
const (
	kindService = "Service"
	kindSlice   = "EndpointSlice"
	kindNode    = "Node"
)

// decode reads a file's manifests. It returns every fault it finds, and content
// only when there is none. A file without a manifest is a fault: it is more
// likely cut short than meant to take its Services away.
func (r *rules) decode(raw []byte) (*content, []*yamldoc.Fault) {
	return r.decodeEach(raw, func() {})
}

// decodeEach is decode that calls each for every object.
func (r *rules) decodeEach(raw []byte, each func()) (*content, []*yamldoc.Fault) {
	d := &decoder{rules: r, each: each, seen: map[id]int{}}
	syntax := yamldoc.Each(raw, func(doc *yamldoc.Document) bool {
		d.documents++
		d.object(doc, metav1.TypeMeta{})
		return true
	})
	faults := append(syntax, d.faults...)
	if d.documents == 0 && len(faults) == 0 {
		return nil, []*yamldoc.Fault{{Reason: "no manifest in it: delete the file to delete what it declared"}}
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return &content{digestOf(raw), d.objects}, nil
}

// services returns the Services among the objects.
func (c *content) services() []*object {
	var services []*object
	for _, o := range c.objects {
		if o.service != nil {
			services = append(services, o)
		}
	}
	return services
}

// decoder collects the objects of a file, and what is wrong with it.
type decoder struct {
	*rules
	each      func()
	documents int
	objects   []*object
	faults    []*yamldoc.Fault
	seen      map[id]int // in which document
}

// object decodes an object or a list of them. What it does not say of its type is taken
// from implied.
func (d *decoder) object(doc *yamldoc.Document, implied metav1.TypeMeta) {
	tm, faults := doc.Type()
	if len(faults) > 0 {
		d.faults = append(d.faults, faults...)
		return
	}
	if tm == (metav1.TypeMeta{}) {
		tm = implied
	}
	switch gv := tm.APIVersion; {
	case gv == "v1" && tm.Kind == kindService:
		d.add(doc, d.service)
	case gv == discoveryv1.SchemeGroupVersion.String() && tm.Kind == kindSlice:
		d.add(doc, d.slice)
	case gv == "v1" && tm.Kind == kindNode:
		d.add(doc, d.node)
	case doc.Path == nil && gv == "v1" && tm.Kind == "List":
		d.list(doc, metav1.TypeMeta{})
	case doc.Path == nil && gv == "v1" && (tm.Kind == "ServiceList" || tm.Kind == "NodeList"),
		doc.Path == nil && gv == discoveryv1.SchemeGroupVersion.String() && tm.Kind == "EndpointSliceList":
		d.list(doc, metav1.TypeMeta{APIVersion: gv, Kind: strings.TrimSuffix(tm.Kind, "List")})
	default:
		d.faults = append(d.faults, doc.FaultAt(yamldoc.Below(doc.Path, "kind"), fmt.Sprintf(
			"%q of apiVersion %q is not served: give Service or Node of v1, EndpointSlice of discovery.k8s.io/v1 or a List of them",
			tm.Kind, tm.APIVersion)))
	}
}

// list decodes the items of a list of objects.
func (d *decoder) list(doc *yamldoc.Document, item metav1.TypeMeta) {
	var l struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta `json:"metadata"`
		Items           yamldoc.Skipped `json:"items"`
	}
	if faults := doc.Strict(&l); len(faults) > 0 {
		d.faults = append(d.faults, faults...)
		return
	}
	doc.Items(func(doc *yamldoc.Document) bool {
		d.object(doc, item)
		return true
	})
}

// add decodes an object of one kind.
func (d *decoder) add(doc *yamldoc.Document, decode func(*yamldoc.Document) (*object, []*yamldoc.Fault)) {
	d.each()
	o, faults := decode(doc)
	d.faults = append(d.faults, faults...)
	if o == nil {
		return
	}
	if first, twice := d.seen[o.id]; twice {
		d.faults = append(d.faults, doc.FaultAt(yamldoc.Below(doc.Path, "metadata.name"),
			fmt.Sprintf("%s is already in document %d: keep one of them", o.id, first)))
		return
	}
	d.seen[o.id] = doc.Number
	o.document, o.root = doc.Number, doc.Path
	d.objects = append(d.objects, o)
}

func (r *rules) service(d *yamldoc.Document) (*object, []*yamldoc.Fault) {
	svc := &corev1.Service{}
	if faults := d.Strict(svc); len(faults) > 0 {
		return nil, faults
	}
	defaultService(svc)
	svc.Namespace = r.shared.String(svc.Namespace)
	svc.Spec.Type = corev1.ServiceType(r.shared.String(string(svc.Spec.Type)))
	o := &object{id: id{kindService, nameOf(svc)}, service: &declared{}}
	if errs := r.checkService(svc, d.Path); len(errs) > 0 {
		return o, d.Faults(errs)
	}
	families, err := r.families(svc, d.Path.Child("spec"))
	o.service = r.declared(svc, families)
	if err != nil {
		o.service.unmet = d.FaultAt(err.Field, err.ErrorBody())
	}
	return o, nil
}

// declared returns what is kept of a Service without fault.
func (r *rules) declared(svc *corev1.Service, families []model.Family) *declared {
	spec := &svc.Spec
	s := &declared{
		model:    convert.Declared(svc, r.allowed),
		foreign:  convert.Foreign(svc),
		families: families,
		listed:   len(spec.ClusterIPs) > 0,
		allocate: exposed(spec) && (spec.AllocateLoadBalancerNodePorts == nil || *spec.AllocateLoadBalancerNodePorts),
	}
	s.healthCheck = healthChecked(spec) && spec.HealthCheckNodePort == 0
	s.served = addressed(spec) && !s.foreign
	for i, ingress := range svc.Status.LoadBalancer.Ingress {
		if mode := ingress.IPMode; ingress.IP != "" && (mode == nil || *mode == corev1.LoadBalancerIPModeVIP) {
			s.ingress = append(s.ingress, i)
		}
	}
	return s
}

func (r *rules) slice(d *yamldoc.Document) (*object, []*yamldoc.Fault) {
	slice := &discoveryv1.EndpointSlice{}
	if faults := d.Strict(slice); len(faults) > 0 {
		return nil, faults
	}
	if slice.Namespace == "" {
		slice.Namespace = metav1.NamespaceDefault
	}
	slice.Namespace = r.shared.String(slice.Namespace)
	errs := checkSlice(slice, d.Path)
	o := &object{id: id{kindSlice, nameOf(slice)}, slice: convert.Slice(slice, r.allowed.Annotations)}
	r.shared.Slice(o.slice)
	return o, d.Faults(errs)
}

// node decodes a Node, of which only its name, addresses and zone matter.
func (r *rules) node(d *yamldoc.Document) (*object, []*yamldoc.Fault) {
	node := &corev1.Node{}
	if faults := d.Strict(node); len(faults) > 0 {
		return nil, faults
	}
	errs := checkNode(node, d.Path)
	return &object{id: id{kindNode, nameOf(node)}, node: convert.Node(node)}, d.Faults(errs)
}

func nameOf(o metav1.Object) model.Name {
	return model.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}
