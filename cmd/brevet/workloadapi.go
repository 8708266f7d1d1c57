package main

import (
	"context"
	"sync/atomic"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// insistent is how a Workload API is asked by what runs for long. There are answers on which go-spiffe gives up for good, and
// goes by what it had last until that expires: they are for whoever begins, and are taken for an outage from the first good
// answer on.
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
	over     func() error // why nobody waits for an answer any more
	answered *atomic.Bool
}

// RecvMsg reads one answer.
func (s *insistentStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.answered.Store(true)
	}
	return insisting(s.over, s.answered, err)
}

// insisting is what go-spiffe is to make of an error: it asks again unless it is told that asking is of no use.
func insisting(over func() error, answered *atomic.Bool, err error) error {
	if code := status.Code(err); over() == nil && answered.Load() && (code == codes.Canceled || code == codes.InvalidArgument) {
		return status.Error(codes.Unavailable, err.Error())
	}
	return err
}
