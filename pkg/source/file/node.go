package file

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkNode checks what the API server checks of a new Node, as far as it bears on where
// packets in a tunnel go and come from.
func checkNode(node *corev1.Node, root *field.Path) field.ErrorList {
	var errs field.ErrorList
	if node.Namespace != "" {
		errs = append(errs, field.Forbidden(root.Child("metadata", "namespace"), "a Node has none"))
	}
	at := root.Child("metadata", "name")
	if node.Name == "" {
		errs = append(errs, field.Required(at, "name the node as its agent's hostnameOverride does"))
	} else {
		errs = append(errs, invalid(at, node.Name, validation.IsDNS1123Subdomain(node.Name))...)
	}
	ips := 0
	for i := range node.Status.Addresses {
		a, path := &node.Status.Addresses[i], root.Child("status", "addresses").Index(i)
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			ips++
			errs = append(errs, checkUnicast(path.Child("address"), a.Address)...)
		case corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
		default:
			errs = append(errs, oneOf(path.Child("type"), a.Type, corev1.NodeInternalIP, corev1.NodeExternalIP,
				corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS)...)
		}
	}
	if ips == 0 {
		errs = append(errs, field.Required(root.Child("status", "addresses"), "give at least one InternalIP"))
	}
	return errs
}
