"""Messages between processes: from ranks and clients of this node to those of any, and back.

mail          where ranks and clients come for mail, and what delivers to them
post_office   where each envelope goes, who waits for whose answer, and who is told that it does not come. Pure.
peers         the streams to other nodes
letters       an envelope on its way, and the files of large content
"""
