package testkit

import "github.com/brevet-dev/brevet/broker"

// Delivered runs a method of the broker that issues, takes what it delivers, and returns that.
func Delivered(issue func(broker.Deliver) error) (result broker.Result, err error) {
	err = issue(func(delivered broker.Result) error {
		result = delivered
		return nil
	})
	return result, err
}
