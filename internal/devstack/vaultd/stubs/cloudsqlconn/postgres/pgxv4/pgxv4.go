// Package pgxv4 stands in for the driver of the same name.
package pgxv4

import "cloud.google.com/go/cloudsqlconn"

// RegisterDriver refuses.
func RegisterDriver(string, ...cloudsqlconn.Option) (func() error, error) {
	return nil, cloudsqlconn.ErrLeftOut
}
