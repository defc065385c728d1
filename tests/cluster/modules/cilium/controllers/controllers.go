// Package controllers takes the place of a module that the Go proxy does not have. The
// programs of Cilium name it for its API of several clusters, which is off.
package controllers

// DerivedServiceAnnotation is a Service's that stands for those of other clusters.
const DerivedServiceAnnotation = "multicluster.kubernetes.io/derived-service"
