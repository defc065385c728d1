package file

import (
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
)

// checkSlice checks what the API server checks of a new EndpointSlice, as far as
// it bears on how its endpoints are reached. Loopback and link-local IPv4
// endpoints are allowed: on a host without a cluster they are of use.
func checkSlice(slice *discoveryv1.EndpointSlice, root *field.Path) field.ErrorList {
	errs := checkMeta(&slice.ObjectMeta, validation.IsDNS1123Subdomain, root.Child("metadata"))
	if slice.AddressType == "" {
		errs = append(errs, field.Required(root.Child("addressType"), "give IPv4 or IPv6"))
	} else {
		errs = append(errs, oneOf(root.Child("addressType"), slice.AddressType,
			discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)...)
	}
	errs = append(errs, checkSlicePorts(slice.Ports, root.Child("ports"))...)
	for i := range slice.Endpoints {
		errs = append(errs, checkEndpoint(&slice.Endpoints[i], slice.AddressType, root.Child("endpoints").Index(i))...)
	}
	return errs
}

func checkSlicePorts(ports []discoveryv1.EndpointPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range ports {
		at, name := path.Index(i), ""
		if p := ports[i].Name; p != nil && *p != "" {
			name = *p
			errs = append(errs, invalid(at.Child("name"), name, validation.IsDNS1123Label(name))...)
		}
		if names[name] {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		names[name] = true
		if p := ports[i].Protocol; p != nil {
			errs = append(errs, checkProtocol(at.Child("protocol"), *p)...)
		}
		if p := ports[i].Port; p != nil {
			errs = append(errs, invalid(at.Child("port"), *p, validation.IsValidPortNum(int(*p)))...)
		}
	}
	return errs
}

func checkEndpoint(ep *discoveryv1.Endpoint, t discoveryv1.AddressType, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("addresses")
	if len(ep.Addresses) == 0 {
		errs = append(errs, field.Required(at, "an endpoint needs an address"))
	}
	for i, ip := range ep.Addresses {
		switch t {
		case discoveryv1.AddressTypeIPv4:
			errs = append(errs, checkEndpointIP(at.Index(i), ip, model.IPv4)...)
		case discoveryv1.AddressTypeIPv6:
			errs = append(errs, checkEndpointIP(at.Index(i), ip, model.IPv6)...)
		}
	}
	if ep.NodeName != nil {
		errs = append(errs, invalid(path.Child("nodeName"), *ep.NodeName, validation.IsDNS1123Subdomain(*ep.NodeName))...)
	}
	if ep.Zone != nil {
		errs = append(errs, invalid(path.Child("zone"), *ep.Zone, validation.IsValidLabelValue(*ep.Zone))...)
	}
	return errs
}

func checkEndpointIP(path *field.Path, ip string, want model.Family) field.ErrorList {
	errs := checkUnicast(path, ip)
	if len(errs) > 0 {
		return errs
	}
	addr := netip.MustParseAddr(ip)
	if model.FamilyOf(addr) != want {
		return field.ErrorList{field.Invalid(path, ip, "must be an "+want.String()+" address, as addressType says")}
	}
	if want == model.IPv6 && addr.IsLinkLocalUnicast() {
		return field.ErrorList{field.Invalid(path, ip, "a link-local IPv6 address cannot be reached without its device")}
	}
	return nil
}
