// Package mysql stands in for the driver of the same name.
package mysql

import "cloud.google.com/go/cloudsqlconn"

// RegisterDriver refuses.
func RegisterDriver(string, ...cloudsqlconn.Option) (func() error, error) {
	return nil, cloudsqlconn.ErrLeftOut
}
