package file

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
)

// rangeField is the field of the configuration for Options.ServiceRanges.
const rangeField = "serviceClusterIPRanges"

// checkFamilies checks ipFamilies and ipFamilyPolicy by themselves and against
// the cluster IPs given.
func checkFamilies(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("ipFamilies")
	for i, f := range spec.IPFamilies {
		errs = append(errs, oneOf(at.Index(i), f, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if slices.Contains(spec.IPFamilies[:i], f) {
			errs = append(errs, field.Duplicate(at.Index(i), f))
		}
	}
	if p := spec.IPFamilyPolicy; p != nil {
		errs = append(errs, oneOf(path.Child("ipFamilyPolicy"), *p, corev1.IPFamilyPolicySingleStack,
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)...)
	}
	if !addressed(spec) {
		return errs
	}
	for i, ip := range clusterIPs(spec) {
		if i >= len(spec.IPFamilies) || len(checkUnicast(at, ip)) > 0 {
			continue
		}
		if f := spec.IPFamilies[i]; f != apiFamily(familyOf(ip)) {
			errs = append(errs, field.Invalid(at.Index(i), f, fmt.Sprintf("the cluster IP is %s", ip)))
		}
	}
	return errs
}

// families returns the families that a checked Service is to have a cluster IP
// of, the primary one first. The cluster IPs given are those of the first of
// them; each of the others needs a range.
func (r *rules) families(svc *corev1.Service, path *field.Path) ([]model.Family, *field.Error) {
	spec := &svc.Spec
	if !addressed(spec) {
		return nil, nil
	}
	families := namedFamilies(spec)
	at := path.Child("ipFamilies")
	if len(families) == 0 {
		if len(r.ranges) == 0 {
			return nil, field.Required(path.Child("clusterIP"), "give an address, or start the agent with "+rangeField)
		}
		families = []model.Family{r.ranges[0].family()}
	}
	if p := spec.IPFamilyPolicy; p != nil {
		switch other := model.IPv4 + model.IPv6 - families[0]; {
		case *p == corev1.IPFamilyPolicySingleStack && len(families) == 2:
			return nil, field.Invalid(path.Child("ipFamilyPolicy"), *p, "allows one IP family, two are given")
		case *p == corev1.IPFamilyPolicyRequireDualStack && len(families) == 1,
			*p == corev1.IPFamilyPolicyPreferDualStack && len(families) == 1 && r.rangeOf(other) != nil:
			families = append(families, other)
			at = path.Child("ipFamilyPolicy")
		}
	}
	for _, f := range families[len(clusterIPs(spec)):] {
		if r.rangeOf(f) == nil {
			return nil, field.Forbidden(at, fmt.Sprintf(
				"no range of %s to take a cluster IP from: give an address, or add a range to %s", f, rangeField))
		}
	}
	return families, nil
}

// namedFamilies returns the families that a Service names, by ipFamilies or by
// its cluster IPs, whichever are more.
func namedFamilies(spec *corev1.ServiceSpec) []model.Family {
	var families []model.Family
	for _, ip := range clusterIPs(spec) {
		families = append(families, familyOf(ip))
	}
	for _, f := range spec.IPFamilies[min(len(families), len(spec.IPFamilies)):] {
		if f == corev1.IPv6Protocol {
			families = append(families, model.IPv6)
		} else {
			families = append(families, model.IPv4)
		}
	}
	return families
}

// apiFamily returns the API's spelling of f.
func apiFamily(f model.Family) corev1.IPFamily { return corev1.IPFamily(f.String()) }
