//go:build !race

package bounds

const slower = 1
