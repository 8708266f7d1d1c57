// Package resource stands in for the names of resources of the HashiCorp Cloud Platform, to which the development core has no link.
package resource

import "errors"

// Resource is empty.
type Resource struct{}

// FromString refuses.
func FromString(string) (Resource, error) {
	return Resource{}, errors.New("the HCP link is left out of the development core")
}
