package main

import (
	"context"
	"sync/atomic"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// insistent returns the options for programs that use a Workload API for a long time. On some errors go-spiffe gives up for
// good, and uses its last state until that expires. These errors are meant for a program that starts. After the first
// successful response, insistent turns them into outages, which go-spiffe retries.
func insistent(address string) []workloadapi.ClientOption {
	var answered atomic.Bool
	return []workloadapi.ClientOption{workloadapi.WithAddr(address), workloadapi.WithDialOptions(grpc.WithStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := open(ctx, desc, conn, method, opts...)
			if err != nil {
				return nil, insisting(ctx.Err, &answered, err)
			}
			return &insistentStream{stream, ctx.Err, &answered}, nil
		}))}
}

type insistentStream struct {
	grpc.ClientStream
	over     func() error // why the caller no longer waits; nil while it does
	answered *atomic.Bool
}

// RecvMsg reads one message.
func (s *insistentStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.answered.Store(true)
	}
	return insisting(s.over, s.answered, err)
}

// insisting returns the error for go-spiffe. After the first successful response, and while the caller waits, it replaces
// the errors on which go-spiffe would give up by Unavailable.
func insisting(over func() error, answered *atomic.Bool, err error) error {
	if code := status.Code(err); over() == nil && answered.Load() && (code == codes.Canceled || code == codes.InvalidArgument) {
		return status.Error(codes.Unavailable, err.Error())
	}
	return err
}
