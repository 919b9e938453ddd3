"""Messages between processes: from ranks and clients of this node to those of any, and back.

mail          what the parts below carry, put together
peers         the streams to other nodes
door          where clients of this machine come
boxes         what delivers to a rank, to a client, or keeps until one is there
post_office   where each envelope goes, and who is told when it can not be delivered. Pure.
open_calls    who waits for whose answer. Pure.
letters       an envelope on its way
blobs         the files of large content
"""
