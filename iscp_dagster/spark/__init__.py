"""The Spark session, in one place: Java, Delta's classes, the session, a Connect server.

Nothing here imports pyspark until a session is asked for.
"""
